"""Outcomes as JUnit XML, which CI servers show beside the results of tests."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold (https://www.w3.org/TR/xml/#charsets)."""


@dataclass(frozen=True)
class Case:
    """One outcome."""

    name: str
    outcome: Literal["passed", "failure", "error"]
    """failure: what was tested does not hold. error: whether it holds could not be found out."""
    kind: str
    """The kind of failure or error, in a word."""
    text: str
    """What was found, in a line."""


def junit_xml(suite: str, cases: Sequence[Case], properties: Mapping[str, str]) -> str:
    """Returns one suite as text, UTF-8: `testsuites` with one `testsuite`, as Jenkins, GitLab and GitHub's actions for
    test reports read it.
    """
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.outcome == "failure" for case in cases)),
        "errors": str(sum(case.outcome == "error" for case in cases)),
    }
    root = ET.Element("testsuites", {"name": _written(suite)} | counts)
    element = ET.SubElement(root, "testsuite", {"name": _written(suite), "skipped": "0"} | counts)
    listed = ET.SubElement(element, "properties")
    for name, value in properties.items():
        ET.SubElement(listed, "property", name=_written(name), value=_written(value))
    for case in cases:
        text = _written(case.text)
        made = ET.SubElement(element, "testcase", classname=_written(suite), name=_written(case.name))
        if case.outcome == "passed":
            ET.SubElement(made, "system-out").text = text
        else:
            ET.SubElement(made, case.outcome, type=_written(case.kind), message=text).text = text
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _written(text: str) -> str:
    return NOT_XML.sub("\ufffd", text)
