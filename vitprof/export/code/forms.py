"""A form in which the samples of a Dataset are stored, as a script without vitprof."""

import ast
from pathlib import Path

from vitprof.config.forms import FORMS
from vitprof.export.code import import_lines, names_of

FOLDER = Path(__file__).parents[2] / "watch" / "forms"


def form_script(form: str, cut: str) -> str:
    """Returns a Python script that stores the samples of a Dataset in a form and reads them.

    `cut` says at which point of the Dataset they are stored, in words.
    """
    docstring = ""
    imports = dict[str, tuple[str, str]]()
    bodies = list[str]()
    for name in ("stored", FORMS[form].module or form):
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        last = 0
        for node in tree.body[1:]:
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports |= names_of(node)
                last = node.end_lineno or 0
        # The first line of the form's, the others of what all forms share.
        shared = docstring[docstring.find("\n") :]
        docstring = f"{ast.get_docstring(tree) or ''}{shared}"
        bodies.append("\n".join(text.splitlines()[last:]).strip())
    imports = {name: of for name, of in imports.items() if not of[0].startswith("vitprof")}
    made = f"Made by vitprof for a Dataset whose samples are stored {cut}: `transform` is what comes after that."
    body = "\n\n\n".join(bodies)
    if body.startswith(("class", "def")):
        # Two empty lines before a class or a function, one before a constant.
        body = f"\n{body}"
    return f'"""{docstring}\n\n{made}\n"""\n\n{import_lines(imports.values())}\n\n{body}\n'
