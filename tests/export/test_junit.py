"""JUnit XML: what CI servers read in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from vitprof.export.junit import Case, junit_xml


def test_outcomes_are_counted_and_told() -> None:
    cases = [
        Case("idle", "passed", "met", "4%"),
        Case("speed", "failure", "missed", "800 < 900 & more"),
        Case("slowdown", "error", "undecided", "too few steps"),
    ]
    root = ET.fromstring(junit_xml("check", cases, {"runs": "3, 4"}))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [(p.get("name"), p.get("value")) for p in suite.iter("property")] == [("runs", "3, 4")]
    idle, speed, slowdown = suite.findall("testcase")
    assert [child.tag for child in idle] == ["system-out"]
    failure, error = speed.find("failure"), slowdown.find("error")
    assert failure is not None
    assert error is not None
    assert (failure.get("type"), failure.get("message"), failure.text) == ("missed", *["800 < 900 & more"] * 2)
    assert error.get("type") == "undecided"


def test_what_xml_cannot_hold_is_replaced() -> None:
    (suite,) = ET.fromstring(junit_xml("check", [Case("\x1b[1m bold \ud800", "passed", "met", "\x00")], {}))
    (case,) = suite.findall("testcase")
    assert case.get("name") == "\ufffd[1m bold \ufffd"
