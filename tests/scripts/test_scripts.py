"""The shell scripts: sourced or called, with stubs for what takes minutes or the network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
SOURCED = [f"scripts/{name}.sh" for name in ("setup", "native", "aarch64", "browser", "android")]
ANDROID = ["android_demo/app/build.sh", "android_demo/termux/setup.sh"]
START = "edgespec/bundle/start.sh"
DEPLOYS = ["scripts/deploy/pi.sh", "scripts/deploy/jetson.sh", "scripts/deploy/trial.sh"]
SCRIPTS = [*SOURCED, "scripts/demo", "scripts/test", "scripts/aarch64", ".ci/run", START, *DEPLOYS, *ANDROID]

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

Stub = Callable[[str, str], Path]


@pytest.fixture
def environment(folder: Path, stub: Stub) -> dict[str, str]:
    stub("c++", 'case $1 in -dumpversion) echo 13 ;; *) echo "c++ 13, Free Software" ;; esac')
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "CMAKE_ARGS", "CXX", "EDGESPEC_VENV")}
    return kept | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder),
    }


@pytest.fixture
def sourced(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run shell commands after sourcing setup.sh."""

    def run(commands: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; {commands}'],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


@pytest.fixture
def python(stub: Stub, folder: Path) -> Path:
    """A Python whose `pip wheel` writes a wheel, and whose `-m venv` writes an environment of itself."""
    return stub(
        "python3",
        f"""
echo "$*" >>'{folder}/calls'
case "$*" in
  *'pip wheel'*)
    [ ! -e '{folder}/broken' ] || {{ echo 'no such header' >&2; exit 1; }}
    while [ -e '{folder}/slow' ]; do sleep 0.1; done
    while [ "$1" != --wheel-dir ]; do shift; done
    mkdir -p "$2"; echo "${{CMAKE_ARGS:-}}" >"$2/llama_cpp_python-1-py3-none-any.whl" ;;
  *'-m pytest'*) echo "required: $EDGESPEC_REQUIRE_MODELS" ;;
  *'-m venv'*)
    venv="${{@: -1}}"
    mkdir -p "$venv/bin"
    touch "$venv/pyvenv.cfg"
    for tool in edgespec ruff mypy clang-format; do cp /bin/true "$venv/bin/$tool"; done
    cp "$0" "$venv/bin/python"
    [ ! -e '{folder}/no-ensurepip' ] || {{ echo 'exit 1' >"$venv/bin/python"; exit 1; }} ;;
esac
""",
    )


def calls(folder: Path, what: str) -> int:
    return (folder / "calls").read_text().count(what)


def test_they_are_clean() -> None:
    shellcheck = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=str(Path(sys.executable).parent)
    )
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; it comes with edgespec[dev]")
    done = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test", *DEPLOYS])
def test_unknown_options_are_refused_and_help_is_given(script: str, environment: dict[str, str]) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / script, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE
        )

    refused = run("--no-such")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"error: unknown option --no-such; see {script} --help\n"
    helped = run("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert f"\n  {script} " in helped.stdout
    assert "#" not in helped.stdout


@pytest.mark.parametrize("words", [["--source"], ["--source", "elsewhere"]])
def test_the_demo_knows_its_sources(words: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run([ROOT / "scripts/demo", *words], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error: --source needs hub or packages\n")


def test_a_half_made_environment_is_made_anew_and_a_whole_one_reused(
    sourced: Callable[..., subprocess.CompletedProcess[str]], python: Path, folder: Path
) -> None:
    venv = folder / "a venv"
    (folder / "no-ensurepip").touch()
    for _ in range(2):
        failed = sourced(f'prepare "{venv}" all')
        assert failed.returncode == 1
        assert failed.stderr.endswith(
            "error: no virtual environment; on Debian: apt-get install python3-venv\n"
        )
    (folder / "no-ensurepip").unlink()
    for _ in range(2):
        done = sourced(f'prepare "{venv}" all')
        assert done.returncode == 0, done.stderr
    assert calls(folder, f"-m venv --clear {venv}") == 3
    assert calls(folder, "pip wheel") == 1
    wheel = next((folder / "cache/edgespec/wheels").glob("*/*.whl"))
    assert calls(folder, f"-m pip install -q {wheel} -e {ROOT}[all]") == 2


def test_a_folder_that_is_no_environment_is_not_cleared(
    sourced: Callable[..., subprocess.CompletedProcess[str]], python: Path, folder: Path
) -> None:
    (folder / "precious").mkdir()
    (folder / "precious" / "file").touch()
    failed = sourced(f'prepare "{folder}/precious" all')
    assert failed.returncode == 1
    assert "is a folder with other things in it" in failed.stderr
    assert (folder / "precious" / "file").exists()


def test_what_changes_the_build_changes_the_key(
    sourced: Callable[..., subprocess.CompletedProcess[str]], stub: Stub
) -> None:
    keys = [sourced("wheel_key", CMAKE_ARGS=args).stdout for args in ("", "", "-DGGML_BLAS=ON")]
    stub("c++", "echo 14")
    keys.append(sourced("wheel_key").stdout)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert all(len(key.strip()) == 12 for key in keys)


def test_a_bash_that_is_too_old_is_told_what_to_do(environment: dict[str, str]) -> None:
    """That of macOS knows no inherit_errexit."""
    commands = f'set -euo pipefail; shopt() {{ return 1; }}; . "{ROOT}/scripts/setup.sh"; echo never'
    done = subprocess.run(["bash", "-c", commands], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "bash 4.4 or newer is needed" in done.stderr and done.stderr.count("\n") == 1


def test_a_processor_without_a_flags_line_has_a_key(
    sourced: Callable[..., subprocess.CompletedProcess[str]], stub: Stub
) -> None:
    stub("grep", "exit 1")
    done = sourced("wheel_key")
    assert (done.returncode, len(done.stdout.strip()), done.stderr) == (0, 12, "")


def test_a_wheel_is_built_once_for_each_set_of_cmake_args(
    sourced: Callable[..., subprocess.CompletedProcess[str]], python: Path, folder: Path
) -> None:
    built = [sourced("llama_wheel python3", CMAKE_ARGS=args).stdout.strip() for args in ("", "-DX=1", "")]
    assert built[0] == built[2] != built[1]
    assert Path(built[1]).read_text().split() == ["-DX=1"]
    assert calls(folder, "pip wheel") == 2
    assert not list(folder.glob("tmp.*"))


def test_a_build_that_fails_leaves_its_log(
    sourced: Callable[..., subprocess.CompletedProcess[str]], python: Path, folder: Path
) -> None:
    (folder / "broken").touch()
    failed = sourced("wheel=$(llama_wheel python3); echo never")
    assert (failed.returncode, failed.stdout) == (1, "")
    log = Path(failed.stderr.rpartition("the whole log: ")[2].strip())
    assert log.read_text() == "no such header\n"
    assert not list(folder.glob("tmp.*"))
    (folder / "broken").unlink()
    assert sourced("llama_wheel python3").returncode == 0
    assert not log.exists()


@pytest.fixture
def building(
    environment: dict[str, str], python: Path, folder: Path
) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a build that lasts until the file `slow` is deleted."""
    (folder / "slow").touch()
    (folder / "calls").touch()
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        script = f'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; w=$(llama_wheel python3); echo "$w"'
        process = subprocess.Popen(
            ["bash", "-c", script],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    (folder / "slow").unlink(missing_ok=True)
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def alive(folder: Path) -> list[str]:
    """Processes that work in the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and b"pip\0wheel" in words:
            found.append(entry.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are read from /proc")
@pytest.mark.parametrize(
    ("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, False)]
)
def test_an_interrupted_build_ends_and_leaves_nothing(
    building: Callable[[], subprocess.Popen[str]], folder: Path, number: signal.Signals, group: bool
) -> None:
    process = building()
    until(lambda: alive(folder))
    if group:
        os.killpg(process.pid, number)  # as Ctrl-C does
    else:
        process.send_signal(number)
    assert process.wait(PATIENCE) != 0
    until(lambda: not alive(folder))
    until(lambda: not list(folder.glob("tmp.*")))
    assert not list(folder.glob("cache/**/*.whl"))
    (folder / "slow").unlink()
    assert building().communicate(timeout=PATIENCE)[0].strip().endswith(".whl")


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock")
def test_of_two_builds_one_waits_for_the_other(
    building: Callable[[], subprocess.Popen[str]], folder: Path
) -> None:
    first = building()
    until(lambda: calls(folder, "pip wheel"))
    second = building()
    assert second.stderr is not None
    assert "waiting for another process that builds llama.cpp" in second.stderr.readline()
    (folder / "slow").unlink()
    assert first.communicate(timeout=PATIENCE)[0] == second.communicate(timeout=PATIENCE)[0] != ""
    assert calls(folder, "pip wheel") == 1


def test_python_310_that_is_not_there_is_none(
    sourced: Callable[..., subprocess.CompletedProcess[str]], stub: Stub
) -> None:
    stub("python3.10", "exit 127")
    stub("pyenv", 'case $1 in versions) printf "%s\\n" 3.11.7 3.10.13/envs/x ;; root) echo /pyenv ;; esac')
    done = sourced('PYTHON=$(oldest_python); echo "[$PYTHON]"')
    assert (done.returncode, done.stdout) == (0, "[]\n")
    stub("pyenv", 'case $1 in versions) printf "%s\\n" 3.10.2 3.11.7 ;; root) echo /pyenv ;; esac')
    assert sourced("oldest_python").stdout == "/pyenv/versions/3.10.2/bin/python\n"


@pytest.mark.parametrize(
    ("options", "venv", "required"),
    [
        ([], "venv", "smollm2-135m chromium"),
        (["--coder"], "venv", "smollm2-135m qwen2.5-coder chromium"),
        (["--oldest"], "venv-oldest", "smollm2-135m"),
    ],
)
def test_the_tests_get_their_environment_and_are_told_what_was_fetched(
    environment: dict[str, str],
    stub: Stub,
    python: Path,
    folder: Path,
    options: list[str],
    venv: str,
    required: str,
) -> None:
    stub("python3.10", python.read_text())
    stub("chromium", "")
    stub("chromedriver", "")
    done = subprocess.run(
        [ROOT / "scripts/test", *options],
        env=environment | {"EDGESPEC_VENV": "venv"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"required: {required}\n")
    assert [p.parent.name for p in folder.glob("*/pyvenv.cfg")] == [venv]


def test_a_python_that_is_asked_for_and_unfit_is_said(
    sourced: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    failed = sourced("find_python", PYTHON="false")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "error: PYTHON is false, which is not Python 3.10 or newer\n"


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize(("script", "ready"), [("native", "emulation_ready"), ("aarch64", "aarch64_ready")])
def test_what_emulation_needs_is_installed_by_root_alone(
    sourced: Callable[..., subprocess.CompletedProcess[str]],
    stub: Stub,
    folder: Path,
    script: str,
    ready: str,
    user: int,
) -> None:
    (folder / "calls").touch()
    stub("id", f"echo {user}")
    stub("apt-get", f"echo \"$*\" >>'{folder}/calls'")
    absent = 'command() { [[ "$2" != qemu* ]]; }'
    done = sourced(f'. "{ROOT}/scripts/{script}.sh"; {absent}; {ready}')
    assert done.returncode == (1 if user else 0)
    assert "qemu-user-static" in done.stderr
    assert calls(folder, "install -y -qq --no-install-recommends qemu-user-static") == (0 if user else 1)


@pytest.mark.parametrize("user", [0, 1000])
def test_the_browser_is_installed_by_root_alone(
    sourced: Callable[..., subprocess.CompletedProcess[str]], stub: Stub, folder: Path, user: int
) -> None:
    (folder / "calls").touch()
    stub("id", f"echo {user}")
    stub("apt-get", f"echo \"$*\" >>'{folder}/calls'")
    absent = 'command() { [[ "$2" != chrom* ]]; }'
    done = sourced(f'. "{ROOT}/scripts/browser.sh"; {absent}; browser_ready')
    assert done.returncode == (1 if user else 0)
    assert calls(folder, "--no-install-recommends chromium chromium-driver") == (0 if user else 1)
    assert ("are not installed" in done.stderr) == bool(user)


@pytest.mark.parametrize("in_ci", [False, True])
def test_without_a_browser_the_tests_run_but_not_in_ci(
    environment: dict[str, str], stub: Stub, python: Path, folder: Path, in_ci: bool
) -> None:
    stub("chromium", "")
    stub("chromedriver", "")
    absent = 'command() { [[ "$2" != chrom* ]] && builtin command "$@"; }; id() { echo 1000; }'
    (folder / "absent").write_text(absent)
    done = subprocess.run(
        ["bash", ROOT / "scripts/test"],
        env={name: value for name, value in environment.items() if name != "CI"}
        | {"EDGESPEC_VENV": "venv", "BASH_ENV": str(folder / "absent"), **({"CI": "true"} if in_ci else {})},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == int(in_ci)
    assert "the chat page" in done.stderr
    assert done.stdout.endswith("" if in_ci else "required: smollm2-135m\n")


def test_a_processor_that_takes_another_path_is_a_failure(
    sourced: Callable[..., subprocess.CompletedProcess[str]], stub: Stub
) -> None:
    stub("emulator", '[ "$1" = --best ] && echo neon || echo checked')
    good, bad = (
        sourced(f'. "{ROOT}/scripts/native.sh"; on_processor {p} emulator') for p in ("neon", "i8mm")
    )
    assert (good.returncode, good.stdout) == (0, "checked\n")
    assert (bad.returncode, bad.stderr) == (1, "error: it takes the path neon, not i8mm: emulator\n")
