"""scripts/deploy: what it would do, with stand-ins for what a board has and this machine has not."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "scripts/deploy"
PATHS = {"/opt/edgespec", "/etc/edgespec", "/var/lib/edgespec", "/var/cache/edgespec"}
CHANGES = [
    "apt-get",
    "useradd",
    "userdel",
    "systemctl",
    "runuser",
    "install",
    "ln",
    "mv",
    "sync",
    "ssh",
    "tar",
]

Stub = Callable[[str, str], Path]

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def environment(folder: Path, stub: Stub) -> dict[str, str]:
    for program in CHANGES:
        stub(program, f"echo {program} \"$@\" >>'{folder}/changes'; exit 1")
    return os.environ | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def run(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [DEPLOY / words[0], *words[1:]]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)

    return run


@pytest.fixture
def sourced(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run shell commands with a script's functions, none of which was called."""

    def run(script: str, commands: str) -> subprocess.CompletedProcess[str]:
        text = f'. <(grep -v "^deploy " "$0")\n{commands}'
        return subprocess.run(
            ["bash", "-c", text, DEPLOY / script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    return run


@pytest.mark.parametrize(
    ("script", "board", "flags"),
    [
        ("pi.sh", "pi3", "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8-a"),
        ("pi.sh", "pi4", "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8-a"),
        ("pi.sh", "pi5", "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16"),
        ("jetson.sh", "orin", "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=87 "),
        ("jetson.sh", "thor", "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=110 "),
    ],
)
def test_a_dry_run_shows_the_build_of_the_board_and_changes_nothing(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path, script: str, board: str, flags: str
) -> None:
    for words in ([], ["--update"]):
        done = run(script, "--dry-run", "--board", board, *words)
        assert (done.returncode, done.stderr) == (0, "")
        [build] = [line.replace("\\ ", " ") for line in done.stdout.splitlines() if "CMAKE_ARGS=" in line]
        assert f"CMAKE_ARGS={flags}" in build
        if board in ("pi3", "pi4"):
            assert "dotprod" not in build
    assert not (folder / "changes").exists()


def test_a_dry_run_of_uninstalling_names_all_that_an_installation_makes(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    made = run("pi.sh", "--dry-run", "--board", "pi5").stdout
    removed = run("pi.sh", "--dry-run", "--uninstall", "--purge").stdout
    assert set(re.findall(r"/(?:opt|etc|var/lib|var/cache)/edgespec\b", made)) == PATHS
    [unit] = re.findall(r"^\+ install -m 0644 \S+ (\S+)$", made, re.MULTILINE)
    for path in {*PATHS, unit}:
        assert f" {path}" in removed
    kept = run("pi.sh", "--dry-run", "--uninstall")
    assert "/var/lib/edgespec" not in kept.stdout
    assert "/var/lib/edgespec" in kept.stderr
    assert not (folder / "changes").exists()


def unit_of(script: str, board: str, run: Callable[..., subprocess.CompletedProcess[str]]) -> str:
    shown = run(script, "--dry-run", "--board", board).stdout
    [unit] = re.findall(r"^\+ write \S+\.service.*\n((?:    .*\n)+)", shown, re.MULTILINE)
    return re.sub(r"^    ", "", unit, flags=re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(("script", "board"), [("pi.sh", "pi4"), ("jetson.sh", "orin")])
def test_systemd_takes_the_unit_and_finds_it_little_exposed(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path, script: str, board: str
) -> None:
    unit = folder / "edgespec.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit_of(script, board, run), flags=re.M))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert checked.returncode == 0 and unit.name not in checked.stderr, checked.stderr
    if (
        "--offline"
        not in subprocess.run(["systemd-analyze", "--help"], capture_output=True, text=True).stdout
    ):
        pytest.skip("systemd 250 is the first that rates a unit that is not installed")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], capture_output=True, text=True
    )
    [found] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", rated.stdout)
    assert float(found) < 2  # of 10


def test_the_service_starts_a_command_that_edgespec_takes(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    shown = run("pi.sh", "--dry-run", "--board", "pi5").stdout
    settings = dict(re.findall(r"^    (EDGESPEC_[A-Z]+)=(.*)$", shown, re.MULTILINE))
    [line] = re.findall(r"^ExecStart=\S+ (.*)$", unit_of("pi.sh", "pi5", run), re.MULTILINE)
    words = re.sub(r"\$(\w+)", lambda name: settings[name[1]], line).split()
    assert words == ["serve", "smollm2-135m", "--host", "127.0.0.1", "--port", "8000"]
    helped = subprocess.run([sys.executable, "-m", "edgespec", *words, "--help"], capture_output=True)
    assert helped.returncode == 0, helped.stderr


@pytest.mark.parametrize("words", [[], ["--update"]])
def test_the_model_is_tried_with_a_command_that_edgespec_takes(
    run: Callable[..., subprocess.CompletedProcess[str]], words: list[str]
) -> None:
    shown = run("pi.sh", "--dry-run", "--board", "pi5", *words).stdout
    [line] = re.findall(r"/bin/edgespec (run .*)$", shown, re.MULTILINE)
    command = [sys.executable, "-m", "edgespec", *shlex.split(line), "--help"]
    helped = subprocess.run(command, capture_output=True)
    assert helped.returncode == 0, helped.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--board", "pi6"], "the board pi6 is none of: pi3 (also Zero 2), pi4 (400, CM4), pi5 (500, CM5)"),
        (["--board"], "--board needs a value"),
        (["--purge"], "--purge goes with --uninstall"),
        (["--source", "elsewhere"], "--source needs hub or packages"),
        (["--pair", "a;b"], "--pair needs a name as edgespec pull takes it, not a;b"),
        (["me@one", "me@two"], "one board at a time: me@one or me@two"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path, words: list[str], said: str
) -> None:
    done = run("pi.sh", "--dry-run", *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {said}\n")
    assert not (folder / "changes").exists()


def test_only_root_on_a_64_bit_system_gets_further(
    run: Callable[..., subprocess.CompletedProcess[str]], stub: Stub, folder: Path
) -> None:
    stub("id", "echo 1000")
    assert run("pi.sh").stderr == "error: it changes the system: run it with sudo\n"
    stub("id", "echo 0")
    stub("dpkg", "echo armhf")
    assert run("pi.sh").stderr == "error: a 64-bit Arm system is needed; this one is armhf\n"
    assert not (folder / "changes").exists()


@pytest.mark.parametrize(
    ("script", "model", "board"),
    [
        ("pi.sh", "Raspberry Pi 3 Model B Plus Rev 1.3", "pi3"),
        ("pi.sh", "Raspberry Pi Zero 2 W Rev 1.0", "pi3"),
        ("pi.sh", "Raspberry Pi 4 Model B Rev 1.4", "pi4"),
        ("pi.sh", "Raspberry Pi 400 Rev 1.0", "pi4"),
        ("pi.sh", "Raspberry Pi Compute Module 4 Rev 1.0", "pi4"),
        ("pi.sh", "Raspberry Pi 5 Model B Rev 1.0", "pi5"),
        ("pi.sh", "Raspberry Pi 500 Rev 1.0", "pi5"),
        ("pi.sh", "Raspberry Pi 2 Model B Rev 1.1", ""),
        ("pi.sh", "NVIDIA Jetson AGX Orin Developer Kit", ""),
        ("jetson.sh", "NVIDIA Jetson AGX Orin Developer Kit", "orin"),
        ("jetson.sh", "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super", "orin"),
        ("jetson.sh", "NVIDIA Jetson AGX Thor Developer Kit", "thor"),
        ("jetson.sh", "NVIDIA Jetson AGX Xavier Developer Kit", ""),
    ],
)
def test_boards_are_known_by_what_their_firmware_calls_them(
    sourced: Callable[..., subprocess.CompletedProcess[str]], script: str, model: str, board: str
) -> None:
    assert sourced(script, f"board_of '{model}'").stdout.strip() == board


UPDATE = """
code='{folder}/opt' settings='{folder}/serve.env' unit='{folder}/edgespec.service'
install() {{ command -p install "$@"; }}
ln() {{ command -p ln "$@"; }}
mv() {{ command -p mv "$@"; }}
sync() {{ :; }}
mkdir -p "$code/old"; ln -s "$code/old" "$code/current"
echo old >"$code/old/edgespec.service"
printf 'EDGESPEC_PAIR=a-pair\\nEDGESPEC_OPTIONS=--ctx 2048\\n' >"$settings"
build() {{ half_made=$1; trap cut_off EXIT; mkdir "$1"; echo new >"$1/edgespec.service"; }}
systemctl() {{ echo "$1"; }}
check_build() {{ :; }}
as_user() {{ [ "$3" = a-pair ] && {answers}; }}
starts() {{ echo "starts $(cat "$unit")"; {starts}; }}
update_edgespec pi5
"""


@pytest.mark.parametrize(
    ("answers", "starts", "said"),
    [
        ("true", "true", ["stop", "daemon-reload", "starts new"]),
        # whether it fits into memory is for the service to tell, whose settings say how much it takes
        ("[[ $* == *--no-memory-check* ]]", "true", ["stop", "daemon-reload", "starts new"]),
        ("false", "true", ["stop", "daemon-reload", "starts old"]),
        (
            "true",
            'grep -q old "$unit"',
            ["stop", "daemon-reload", "starts new", "daemon-reload", "starts old"],
        ),
    ],
)
def test_an_update_that_does_not_work_is_undone(
    sourced: Callable[..., subprocess.CompletedProcess[str]],
    folder: Path,
    answers: str,
    starts: str,
    said: list[str],
) -> None:
    done = sourced("pi.sh", UPDATE.format(folder=folder, answers=answers, starts=starts))
    assert done.stdout.splitlines() == said, done.stderr
    works = said[-1].endswith("new")
    assert done.returncode == (0 if works else 1)
    reason = "does not answer, see above" if answers == "false" else "does not start: journalctl -u edgespec"
    assert (f"the one before is back, as the new version {reason}" in done.stderr) != works
    code = folder / "opt"
    assert ((code / "current").resolve().name == "old") != works
    assert {path.name for path in code.iterdir()} == {"current", (code / "current").resolve().name}


@pytest.mark.parametrize(("answers", "starts"), [("kill -TERM $$", "true"), ("true", "kill -TERM $$")])
def test_an_update_that_is_cut_off_while_it_tries_the_new_version_leaves_the_one_before_running(
    sourced: Callable[..., subprocess.CompletedProcess[str]], folder: Path, answers: str, starts: str
) -> None:
    """Such as by a lost connection. The service was stopped for the trial."""
    done = sourced("pi.sh", UPDATE.format(folder=folder, answers=answers, starts=starts))
    assert done.returncode != 0
    assert done.stdout.splitlines()[-2:] == ["daemon-reload", "restart"], done.stderr
    code = folder / "opt"
    assert {path.name for path in code.iterdir()} == {"current", "old"}
    assert (code / "current").resolve().name == "old"
    assert (folder / "edgespec.service").read_text() == "old\n"


def test_what_a_power_cut_left_is_removed_and_what_is_in_use_is_not(
    sourced: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    (folder / "disk/used").mkdir(parents=True)
    (folder / "disk/half made").mkdir()
    (folder / "cache/tmp/half built").mkdir(parents=True)
    (folder / "opt").symlink_to(folder / "disk")  # as where /opt is on another disk
    (folder / "disk/current").symlink_to(folder / "disk/used")
    for code in ("opt", "none"):
        done = sourced("pi.sh", f"code='{folder}/{code}' cache='{folder}/cache'; remove_leftovers")
        assert done.returncode == 0, done.stderr
    assert {path.name for path in (folder / "disk").iterdir()} == {"current", "used"}
    assert not list((folder / "cache").iterdir())


def test_one_attempt_does_not_take_for_leftovers_what_another_is_making(
    sourced: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    done = sourced("pi.sh", f"lock_file='{folder}/lock'; one_at_a_time; echo one; (one_at_a_time; echo two)")
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert done.stderr.startswith("error: another process installs, updates or removes edgespec here")


def test_what_was_built_and_not_put_to_use_does_not_stay(
    sourced: Callable[..., subprocess.CompletedProcess[str]], stub: Stub, folder: Path
) -> None:
    stub("apt-get", "")
    stub("python", 'mkdir -p "$3/bin"; printf "#!/bin/sh\\n" >"$3/bin/python"; chmod +x "$3/bin/python"')
    done = sourced(
        "pi.sh",
        f"""code='{folder}/opt' cache='{folder}/cache'
find_python() {{ echo '{folder}/bin/python'; }}
llama_wheel() {{ echo a.whl; }}
install() {{ command -p install "$@"; }}
build "$code/new" pi5
ls "$code/new"
false  # as fetching a model without a network""",
    )
    assert (done.returncode, done.stdout.split()) == (1, ["bin", "edgespec.service"]), done.stderr
    assert not list((folder / "opt").iterdir())


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8001/health"),
        ('"0.0.0.0"', "http://0.0.0.0:8001/health"),
        ("::", "http://[::]:8001/health"),
    ],
)
def test_the_service_is_asked_where_its_settings_put_it(
    sourced: Callable[..., subprocess.CompletedProcess[str]], folder: Path, host: str, address: str
) -> None:
    (folder / "serve.env").write_text(f"EDGESPEC_HOST={host}\nEDGESPEC_PORT=8001\n")
    assert sourced("pi.sh", f"settings='{folder}/serve.env'; health_address").stdout == f"{address}\n"


STARTS = """
code='{folder}/opt' settings='{folder}/serve.env'
mkdir -p "$code/current/bin"
printf '#!/bin/sh\\n' >"$code/current/bin/python"
chmod +x "$code/current/bin/python"
printf 'EDGESPEC_HOST=127.0.0.1\\nEDGESPEC_PORT=8000\\n' >"$settings"
systemctl() {{ echo "$1"; }}
starts
"""


def test_a_version_that_failed_too_often_does_not_keep_the_one_before_from_starting(
    sourced: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    """systemd starts no service that failed five times in ten minutes, unless it is told to forget that."""
    done = sourced("pi.sh", STARTS.format(folder=folder))
    assert (done.returncode, done.stdout.split()) == (0, ["reset-failed", "restart"]), done.stderr


def test_the_service_on_a_raspberry_pi_may_ask_its_firmware_what_slows_it_down(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    lines = unit_of("pi.sh", "pi5", run).splitlines()
    assert {"DevicePolicy=closed", "DeviceAllow=/dev/vcio rw"} < set(lines)
    assert not [line for line in lines if line.startswith("PrivateDevices")]  # has no such file


def test_a_service_whose_address_is_not_there_yet_at_boot_is_started_again(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """A network may come up after it; the server then ends with 2, as over any address that cannot be had."""
    unit = unit_of("pi.sh", "pi5", run)
    assert "Restart=on-failure" in unit.splitlines()
    assert not re.search(r"^(RestartPrevent|Success)ExitStatus=(.*\s)?2\b", unit, re.MULTILINE)


def test_over_ssh_the_same_script_runs_from_a_copy_that_is_then_deleted(
    run: Callable[..., subprocess.CompletedProcess[str]], stub: Stub, folder: Path
) -> None:
    (folder / "bin/tar").unlink()
    stub("ssh", f"""[ "$1" != -t ] || shift; echo "$1" >>'{folder}/hosts'; bash -c "$2" """)
    stub(
        "sudo",
        f"""echo "$2" >'{folder}/script'; shift 2; printf '<%s>' "$@"
cd "$(dirname "$(cat '{folder}/script')")/../.." && ls . models; exit 3""",
    )
    done = run("jetson.sh", "me@board", "--board", "orin", "--pair", "qwen2.5-coder")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("<--board><orin><--pair><qwen2.5-coder>")
    assert {"edgespec", "pyproject.toml", "catalog.toml"} <= set(done.stdout.split())
    assert (folder / "hosts").read_text() == "me@board\n" * 2
    script = Path((folder / "script").read_text().strip())
    assert script.name == "jetson.sh"
    assert not script.parents[2].exists()


@pytest.mark.parametrize(
    ("greeting", "code", "said"),
    [
        ("echo '* Welcome *'; bash -c \"$2\"", 3, ""),
        ("cat >/dev/null; echo '* Welcome *'", 1, "error: me@board did not say where the copy is"),
    ],
)
def test_what_a_board_greets_with_is_not_taken_for_the_folder_of_the_copy(
    run: Callable[..., subprocess.CompletedProcess[str]],
    stub: Stub,
    folder: Path,
    greeting: str,
    code: int,
    said: str,
) -> None:
    """That folder is deleted in the end; with `*` in its name, so would be what is in the user's home."""
    (folder / "bin/tar").unlink()
    (folder / "home").mkdir()
    (folder / "home/letter").touch()
    stub(
        "ssh",
        f"""[ "$1" != -t ] || shift; echo "$2" >>'{folder}/commands'; cd '{folder}/home'; {greeting}""",
    )
    stub("sudo", "exit 3")
    done = run("pi.sh", "me@board")
    assert (done.returncode, done.stderr.startswith(said)) == (code, True), done.stderr
    assert (folder / "home/letter").exists()
    _, *last = (folder / "commands").read_text().splitlines()
    assert len(last) == (code == 3)
    for copy in re.findall(r"rm -rf (.*?);", "".join(last)):
        assert re.fullmatch(r"/tmp/edgespec\.\w+", copy)
        assert not Path(copy).exists()
