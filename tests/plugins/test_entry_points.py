# SPDX-License-Identifier: MIT
"""Backends by entry point: found by one name, refused with a reason, and harmless to each other."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import rota

BACKEND = """
# a stranger's backend: it borrows the memory store, which is all that these tests need of it
from rota.memory import MemoryBackend

class Backend(MemoryBackend):
    contract = 1
    options = {"colour": "what it is painted in"}
"""


@pytest.fixture
def site(tmp_path: Path):
    """A folder on the path of a fresh interpreter, and how to install a made-up distribution into it and to run code against it."""

    class Site:
        def install(self, distribution: str, schemes: dict[str, str], module: str = "", source: str = BACKEND) -> None:
            name = module or distribution.replace("-", "_")
            (tmp_path / f"{name}.py").write_text(source)
            info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
            entries = "\n".join(f"{scheme} = {value}" for scheme, value in schemes.items())
            (info / "entry_points.txt").write_text(f"[rota.backends]\n{entries}\n")

        def run(self, code: str) -> str:
            done = subprocess.run(
                [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{textwrap.dedent(code)}"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        def error(self, url: str) -> str:
            return self.run(f"""
                import rota
                try:
                    rota.connect({url!r})
                except rota.RotaError as error:
                    print(type(error).__name__, error)
            """)

    return Site()


def test_a_strangers_backend_is_found_by_its_scheme(site):
    site.install("rota-mine", {"mine": "rota_mine:Backend"})
    assert "released" in site.run("""
        import rota
        with rota.connect("mine://x?colour=red&prefix=p") as client:
            grant = client.try_lease("job")
            assert grant.name == "p/job"
            grant.release()
            print(grant)
    """)


def test_an_option_it_does_not_know_is_refused_with_a_did_you_mean(site):
    site.install("rota-mine", {"mine": "rota_mine:Backend"})
    message = site.error("mine://x?color=red")
    assert message.startswith("ConfigurationError")
    assert "'color'" in message
    assert "did you mean 'colour'" in message


def test_a_misspelt_scheme_is_told_which_is_near(site):
    site.install("rota-mine", {"mine": "rota_mine:Backend"})
    message = site.error("mnie://x")
    assert message.startswith("BackendNotFound")
    assert "did you mean 'mine'" in message


def test_a_scheme_of_ours_that_is_not_installed_prints_the_install_line(site):
    # the test's own environment has it: an interpreter without that, and with the core alone
    message = site.run(f"""
        import sys
        sys.path[:] = [{str(Path(rota.__file__).parents[1])!r}, *(path for path in sys.path if "site-packages" not in path)]
        import rota
        try:
            rota.connect("zookeeper://svc:s3cr3t@h1:2181,h2:2181/chroot")
        except rota.RotaError as error:
            print(type(error).__name__, error)
    """)
    assert message.startswith("BackendNotFound")
    assert "pip install ./backends/zookeeper" in message
    assert "s3cr3t" not in message


def test_two_distributions_that_claim_one_scheme_are_an_error_that_names_both(site):
    site.install("rota-mine", {"mine": "rota_mine:Backend"})
    site.install("rota-other", {"mine": "rota_other:Backend"})
    message = site.error("mine://x")
    assert message.startswith("ConfigurationError")
    assert "rota-mine" in message
    assert "rota-other" in message


def test_a_plug_in_can_not_take_an_embedded_scheme(site):
    site.install("rota-thief", {"sqlite": "rota_thief:Backend"})
    assert "SqliteDriver" in site.run("import rota; print(type(rota.connect('sqlite:///tmp/never-opened.db').driver).__name__)")


@pytest.mark.parametrize(
    ("source", "culprit"),
    [
        ("raise RuntimeError('broken at import')", "broken at import"),
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("class Backend:\n    contract = 1", "is not a rota.backend.Backend"),
        (BACKEND.replace("contract = 1", "contract = 99"), "contract 99"),
        ("", "Backend"),
    ],
)
def test_a_broken_plug_in_is_named_and_harms_no_other_scheme(site, source, culprit):
    site.install("rota-mine", {"mine": "rota_mine:Backend"})
    site.install("rota-broken", {"broken": "rota_broken:Backend"}, source=source)
    message = site.error("broken://x")
    assert message.startswith("ConfigurationError")
    assert culprit in message
    assert "rota-broken" in message
    assert "MemoryDriver" in site.run("import rota; print(type(rota.connect('mine://x').driver).__name__)")
    assert "MemoryDriver" in site.run("import rota; print(type(rota.connect('memory://x').driver).__name__)")


def test_only_the_plug_in_that_is_asked_for_is_loaded(site):
    site.install("rota-mine", {"mine": "rota_mine:Backend"})
    site.install("rota-other", {"other": "rota_other:Backend"})
    assert site.run("import rota, sys; rota.connect('mine://x'); print('rota_other' in sys.modules)").strip() == "False"


def test_an_embedded_scheme_reads_no_entry_points(site):
    assert site.run("import rota, sys; rota.connect('memory://x'); print('importlib.metadata' in sys.modules)").strip() == "False"


def test_a_backend_that_has_hooks_observes_too(site):
    site.install(
        "rota-mine",
        {"mine": "rota_mine:Backend"},
        source=BACKEND
        + "\n    import rota\n    @rota.hookimpl\n    def rota_granted(self, grant):\n        print('observed', grant.name)\n",
    )
    assert "observed job" in site.run("""
        import rota
        from rota._observers import observers
        with rota.connect("mine://x") as client:
            client.try_lease("job").release()
            assert observers.flush(5)
    """)


def test_connect_does_no_io_for_an_embedded_store(tmp_path):
    path = tmp_path / "folder" / "rota.db"
    rota.connect(f"sqlite://{path}").close()
    assert not path.parent.exists()
