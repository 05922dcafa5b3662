"""A form in which the samples of a Dataset are stored, as a script without vitprof."""

from vitprof.export.code.source import Needed, import_lines, module_of
from vitprof.forms import module_name

STORED = "vitprof.forms.stored"


def form_script(form: str, cut: str) -> str:
    """Returns a Python script that stores the samples of a Dataset in a form and reads them.

    `cut` says at which point of the Dataset they are stored, in words.
    """
    needed = Needed()
    needed.add(STORED, ["convert", "Samples"])
    needed.add(module_name(form), ["Writer", "Reader"])
    # The first lines are the form's, the others are of what all forms share.
    shared = module_of(STORED).docstring
    head = module_of(module_name(form)).docstring.strip()
    made = (
        f"Made by vitprof for a Dataset whose samples are stored {cut}: `transform` is what comes "
        "after that."
    )
    docstring = f"{head}\n{shared[shared.index(chr(10)) + 1 :].rstrip()}\n\n{made}\n"
    body = "\n\n\n".join(needed.texts.values())
    if body.startswith(("class", "def")):
        # Two empty lines before a class or a function, one before a constant.
        body = f"\n{body}"
    return f'"""{docstring}"""\n\n{import_lines(needed.imports.values())}\n\n{body}\n'
