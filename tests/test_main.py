"""`python -m vitprof` before there is a command line."""

import sys

import pytest

from vitprof.__main__ import main


class CtrlC:
    """Raises what Ctrl-C does while the commands are being imported."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "vitprof.cli":
            raise KeyboardInterrupt


def test_ctrl_c_during_the_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [CtrlC(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "vitprof.cli", raising=False)
    monkeypatch.delattr("vitprof.cli", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
