"""Names: what is taken, and what becomes of the rest."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof import names

ANY = st.text(st.characters(codec=None), max_size=names.MAX_NAME + 50)
ODD = st.text(
    st.sampled_from("\t\n\r\x0b\x1b\x85\u2028\u202e\u2066\u061c\ufeff\ud800 a�…"), max_size=30
)


@given(ANY | ODD)
def test_a_name_that_is_taken_is_left_alone_and_a_tamed_one_is_taken(name: str) -> None:
    kept = names.cut_name(name)
    if not names.why_no_name(kept):
        assert names.tamed_name(kept) == kept
    tamed = names.tamed_name(name)
    assert not names.why_no_name(tamed)
    assert names.tamed_name(tamed) == tamed == names.cut_name(tamed)
    tamed.encode()


@given(ANY | ODD)
def test_a_harmless_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = names.harmless(text)
    assert not names.NOT_PRINTED.search(shown)
    assert names.harmless(shown) == shown
    assert shown.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("name", "tamed"),
    [
        ("\n\n", ""),
        ("two\r\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[2Jgone", f"{names.MARK}[2Jgone"),
        ("run \u202eevil", f"run {names.MARK}evil"),
        ("x" * (names.MAX_NAME + 1), "x" * (names.MAX_NAME - 1) + "…"),
        ("Größe 🚀 👩‍💻, =1+1 \u00a0", "Größe 🚀 👩‍💻, =1+1"),
    ],
)
def test_what_becomes_of_a_name(name: str, tamed: str) -> None:
    assert names.tamed_name(name) == tamed


def test_what_a_person_may_not_give() -> None:
    for name in ("a\nb", "a\tb", "\x1b[31mred", "\u202ered", "a\u2028b", "bell \a", "\u061cx"):
        assert names.why_no_name(name).startswith("give one line, without control characters")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --api-key=S3CRET --epochs 3 --hf-token=S3CRET --db_password='S3CRET with S3CRET'",
        "python train.py --api-key S3CRET --apiKey S3CRET --password S3CRET --x 1 --token S3CRET",
        "env WANDB_API_KEY=S3CRET AWS_SECRET_ACCESS_KEY=S3CRET AWS_SESSION_TOKEN=S3CRET python train.py",
        "env MYSQL_PWD=S3CRET python train.py",
        "python train.py logger.wandb.api_key=S3CRET +hub.token=S3CRET",
        "python train.py --db postgresql://me:S3CRET@host/db",
        "python train.py --db=postgresql://me:S3CRET@S3CRET/S3CRET@host/db",
        "python train.py --db 'mysql://host/db?user=me&password=S3CRET&ssl=1'",
        "python train.py https://S3CRET@github.com/me/data.git",
        "bash -c 'export API_KEY=S3CRET; python train.py --password S3CRET'",
        """python train.py --config '{"api_key": "S3CRET", "lr": 1}'""",
        "python train.py --header 'Authorization: Bearer S3CRETS3CRET'",
        "python train.py 'https://host/data?X-Amz-Signature=S3CRET&x=1' --jwt S3CRET",
        "python train.py --db 'Server=h;Pwd=S3CRET;' --pw S3CRET",
        "python train.py --user me:S3CRET --key 5S3CRETabcdef",
        "python train.py -u me:S3CRET --auth=me:S3CRET --key=5S3CRETabcdef",
        "python train.py hf_S3CRETabcdefghijklmn sk-proj-S3CRETabcdefghijklmn",
    ],
)
def test_secrets_are_masked_and_nothing_else(command: str) -> None:
    parts = shlex.split(command)
    shown = names.masked_command(parts)
    assert "S3CRET" not in shlex.join(shown)
    assert "***" in shlex.join(shown)
    assert len(shown) == len(parts)
    assert names.masked_command(shown) == shown
    assert "train.py" in shlex.join(shown)
    assert "S3CRET" not in names.masked(f"train.py: error: unrecognized arguments: {command}")


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --tokenizer gpt2 --max-tokens 512 --pad-token '<pad>' --key 7 --num_tokens=5",
        "python train.py --key image --user me --key=a/long/file/of/keys.h5 --author a:b",
        "env PWD=/home/me OMP_NUM_THREADS=2 python -m train --author me --passes 3 --compass north",
        "python train.py --monkey 3 --data https://host:8080/a/b?x=1 s3://bucket/key --password-file /run/p",
        "torchrun --rdzv-endpoint=host:29400 train.py lr=0.1 'a: b'",
    ],
)
def test_what_is_no_secret_stays(command: str) -> None:
    assert names.masked_command(shlex.split(command)) == tuple(shlex.split(command))


def test_a_long_word_takes_no_longer_than_its_length() -> None:
    """A search from each of its letters would take minutes."""
    assert names.masked("a-" * 100_000) == "a-" * 100_000
