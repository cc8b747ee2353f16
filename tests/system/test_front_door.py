"""``import hotset`` is quick and offers what it lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hotset
from hotset.tests.support.real_torchrec import torchrec_or_skip

ROOT = Path(__file__).resolve().parents[2]


def printed(code: str) -> str:
    command = (sys.executable, "-c", code)
    found = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_importing_hotset_imports_nothing_else() -> None:
    """Nothing but modules of Python itself: then it takes milliseconds."""
    code = (
        "import __future__, importlib, typing, sys; before = set(sys.modules); import hotset; "
        "print(sorted(set(sys.modules) - before))"
    )
    assert printed(code) == "['hotset']"


def test_settings_and_errors_come_without_torch() -> None:
    code = (
        "import sys, hotset; hotset.TrainConfig(epochs=2), hotset.HotsetError, hotset.ModelInputs; "
        "hotset.preprocess, hotset.statistics; "
        "print('torch' in sys.modules)"
    )
    assert printed(code) == "False"


def test_every_public_name_is_there() -> None:
    assert set(hotset.__all__) <= set(dir(hotset))
    for name in hotset.__all__:
        assert getattr(hotset, name).__name__.split(".")[-1] == name


def test_nothing_in_a_checkout_shadows_torchrec() -> None:
    assert not list(ROOT.glob("torchrec*"))
    assert hotset.torchrec.__name__ == "hotset.train.torchrec"


@pytest.mark.slow
def test_the_real_torchrec_is_imported_in_a_checkout() -> None:
    torchrec_or_skip()
    # As a program finds modules that is started there, with the checkout before all else.
    code = "import torchrec, hotset; print(torchrec.__file__, hotset.torchrec.HotColdEmbeddings.__name__)"
    command = (sys.executable, "-W", "ignore", "-c", code)
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    path, name = found.stdout.split()
    assert ROOT not in Path(path).resolve().parents or ".venv" in path
    assert name == "HotColdEmbeddings"


def test_the_old_name_of_a_function_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked for before the new name was, and after.
    monkeypatch.delattr(hotset, "apply", raising=False)
    for _ in range(2):
        with pytest.warns(
            DeprecationWarning, match=r"hotset.apply_changes is called hotset.apply now"
        ) as found:
            old = hotset.apply_changes
        assert old is hotset.apply and found[0].filename == __file__


def test_only_public_names_are_listed() -> None:
    listed = [name for name in dir(hotset) if not name.startswith("__")]
    assert listed == sorted(hotset.__all__)


def test_packages_keep_their_names() -> None:
    import hotset.stats
    import hotset.train

    assert (hotset.train.__name__, hotset.stats.__name__) == ("hotset.train", "hotset.stats")


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'hotset' has no attribute 'fits'"):
        hotset.fits  # noqa: B018
