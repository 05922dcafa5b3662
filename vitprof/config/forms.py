"""Choosing a form for the samples of a user's own Dataset."""

from vitprof.errors import ConfigError
from vitprof.forms import FORMS

SAMPLES = 500
"""Samples that a plan stores in each form, unless it is given."""
AS_IT_IS = "as-is"
"""The samples of a plan as the script's own Dataset reads them."""


def check_form(option: str, name: str) -> None:
    """Raises `ConfigError` where there is no such form."""
    if name not in FORMS:
        raise ConfigError(option, name, f"choose one of {', '.join(FORMS)}")
