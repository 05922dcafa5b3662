"""Tournament: strategies x batch sizes against each other, and the one setting to use."""

from vitprof.ui.entry import through_app
from vitprof.ui.tournament.page import page

through_app("pages/tournament.py")
page()
