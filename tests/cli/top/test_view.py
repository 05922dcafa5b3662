"""What keys change of what is looked at."""

from dataclasses import replace

from vitprof.cli.top.view import View

LISTED = [9, 7, 4]


def pressed(view: View, *keys: str) -> View:
    for key in keys:
        view = view.pressed(key, LISTED)
    return view


def test_a_row_is_chosen_and_stays_chosen_while_it_is_listed() -> None:
    view = View().with_runs(LISTED)
    assert view.chosen == 9
    view = pressed(view, "down")
    assert view.chosen == 7
    assert view.with_runs([12, 9, 4, 7]).chosen == 7
    assert view.with_runs([12, 9]).chosen == 12
    assert view.with_runs([]).chosen is None


def test_up_and_down_end_at_the_first_and_the_last_row() -> None:
    view = View().with_runs(LISTED)
    assert pressed(view, "up").chosen == 9
    assert pressed(view, *["down"] * 5).chosen == 4
    assert pressed(view, "end").chosen == 4
    assert pressed(view, "end", "home").chosen == 9
    assert pressed(view, "page down").chosen == 4


def test_enter_opens_the_answer_and_escape_goes_back() -> None:
    view = pressed(View().with_runs(LISTED), "down", "enter")
    assert view.opened == 7
    assert pressed(view, "sort") == view, "there is nothing to sort"
    scrolled = pressed(view, "down", "down", "up")
    assert (scrolled.opened, scrolled.chosen, scrolled.offset) == (7, 7, 1)
    back = pressed(scrolled, "escape")
    assert (back.opened, back.chosen, back.offset) == (None, 7, 0)
    assert View().pressed("enter", []).opened is None


def test_a_key_that_means_nothing_changes_nothing() -> None:
    view = View().with_runs(LISTED)
    assert pressed(view, "", "escape", "left") == view
    assert pressed(view, "quit").quits


def test_the_list_scrolls_no_further_than_the_chosen_row_needs() -> None:
    view = View(offset=0)
    assert view.scrolled([4, 5], 20, 10).offset == 0
    assert view.scrolled([10, 11], 20, 10).offset == 2
    assert replace(view, offset=8).scrolled([4, 5], 20, 10).offset == 4
    assert replace(view, offset=2).scrolled([4, 5], 20, 10).offset == 2
    assert replace(view, offset=50).scrolled([], 20, 10).offset == 10, "not beyond the last line"
    assert view.scrolled([1, 2], 3, 1).offset == 1, "a row that does not fit begins at the top"
