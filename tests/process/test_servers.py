# SPDX-License-Identifier: Apache-2.0
"""Servers as fixtures: started, asked, shared, stopped with all they started; and what a leg says of one that fails."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness import server_restart
from harness.archive import RunFolder
from harness.connectors import ADAPTERS
from harness.errors import LegError
from harness.records import Ending, Phase, SubjectSpec
from harness.runner import Runner
from harness.server_kinds import SERVERS, ServerSpec
from harness.server_restart import STORE_VARIABLE
from harness.servers import Server, ServerError, Servers, free_ports, needed_by
from harness.warm import LATE_VARIABLES

#: Answers 200 on every path, after it started a grandchild whose number it writes down.
GOOD = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open("grandchild", "w").write(str(child.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DEAF = "import signal; print('deaf', flush=True); signal.pause()"
DEAD = "import sys; print('no such segment', flush=True); sys.exit(3)"

CONFIG = {"kv_connector": "MooncakeStoreConnector"}


def spec(source: str, **changes) -> ServerSpec:
    made = ServerSpec(
        name="mooncake",
        ports=("http",),
        command=lambda ports, folder: [sys.executable, "-c", source, str(ports["http"])],
        health=lambda ports: f"http://127.0.0.1:{ports['http']}/",
        env=lambda ports, folder: {"ADDRESS": str(ports["http"]), "FOLDER": str(folder)},
        shared=True,
    )
    return replace(made, **changes)


@pytest.fixture
def servers(tmp_path):
    made = []

    def make(source: str, **changes) -> Servers:
        made.append(Servers(tmp_path / "servers", {"mooncake": spec(source, **changes)}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def ends(pid: int) -> bool:
    """Whether a process that was killed is gone; the kernel may need a moment."""
    until = time.monotonic() + 20
    while alive(pid) and time.monotonic() < until:
        os.sched_yield()
    return not alive(pid)


def test_legs_share_a_server_and_the_end_of_the_run_ends_all_it_started(servers, tmp_path):
    run = servers(GOOD)
    with run.serving(CONFIG) as first:
        pass
    with run.serving(CONFIG) as second:
        assert second == first
    (folder,) = (tmp_path / "servers").iterdir()
    assert first["FOLDER"] == str(folder)
    assert (folder / "log").read_text() == "serving\n"
    grandchild = int((folder / "grandchild").read_text())
    assert alive(grandchild)
    run.close()
    assert ends(grandchild)


def test_a_server_that_cannot_be_shared_lives_for_one_leg(servers):
    run = servers(GOOD, shared=False)
    with run.serving(CONFIG) as first:
        pass
    with run.serving(CONFIG) as second:
        assert second["FOLDER"] != first["FOLDER"]


def test_what_needs_no_server_starts_none(servers, tmp_path):
    with servers(GOOD).serving({"kv_connector": "ExampleConnector"}) as environment:
        assert environment == {}
    assert not (tmp_path / "servers").exists()


@pytest.mark.parametrize(("source", "words"), [
    (DEAD, "server mooncake ended with exit code 3 before it answered; its log is "),
    (DEAF, "server mooncake did not answer within 0.5 s; its log is "),
])
def test_a_server_that_never_serves_is_named_within_its_deadline(tmp_path, source, words):
    with pytest.raises(ServerError) as caught:
        Server(spec(source), tmp_path / "s", deadline_s=0.5 if source is DEAF else 60.0)
    assert str(caught.value).startswith(words)


def test_a_server_whose_settings_cannot_be_written_is_ended(tmp_path):
    numbers = []

    def env(ports, folder):
        numbers.extend(child.pid for child in psutil.Process().children() if str(ports["http"]) in child.cmdline())
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        Server(spec(GOOD, env=env), tmp_path / "s")
    assert len(numbers) == 1 and ends(numbers[0])


def test_what_a_caller_exported_for_a_store_reaches_no_server(tmp_path, monkeypatch):
    for name in ("MC_FORCE_TCP", "LMCACHE_CHUNK_SIZE", "MOONCAKE_CONFIG_PATH"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("PATH_OF_MINE", "kept")
    source = "import json, os; json.dump(dict(os.environ), open('seen', 'w'));" + GOOD
    server = Server(spec(source), tmp_path / "s")
    server.stop()
    seen = json.loads((tmp_path / "s" / "seen").read_text())
    assert seen["PATH_OF_MINE"] == "kept"
    assert [name for name in seen if name.startswith(("MC_", "LMCACHE_", "MOONCAKE_"))] == []


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ServerError, match="server mooncake could not be started: .*no-such-program"):
        Server(spec("", command=lambda ports, folder: ["no-such-program"]), tmp_path / "s")


def test_a_server_that_dies_while_the_leg_runs_is_the_legs_and_not_the_next_ones(servers):
    run = servers(GOOD)
    words = "server mooncake died of SIGKILL while the leg ran"
    with pytest.raises(ServerError, match=words), run.serving(CONFIG) as first:
        (process,) = [one for one in psutil.Process().children() if first["ADDRESS"] in one.cmdline()]
        process.kill()
        # Its end is waited for and left to be collected by the one who started it.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with run.serving(CONFIG) as second:
        assert second["FOLDER"] != first["FOLDER"]


def test_a_restarted_server_has_its_address_and_its_log_and_nothing_else_of_before(servers):
    run = servers(GOOD)
    with run.serving(CONFIG) as env:
        folder = Path(env["FOLDER"])
        before = int((folder / "grandchild").read_text())
        run.restart()
        assert ends(before)
        assert alive(int((folder / "grandchild").read_text()))
        with urllib.request.urlopen(f"http://127.0.0.1:{env['ADDRESS']}/", timeout=5) as answer:
            assert answer.status == 200
        assert (folder / "log").read_text() == "serving\nserving\n"
    with run.serving(None):
        run.restart()
    assert (folder / "log").read_text() == "serving\nserving\n"


def test_a_legs_own_exception_is_not_taken_for_the_servers(servers):
    with pytest.raises(KeyError), servers(GOOD).serving(CONFIG):
        raise KeyError("leg")


def test_every_adapters_server_can_be_run_and_children_count():
    wanted = {adapter.server for adapter in ADAPTERS.values() if adapter.server}
    assert wanted == set(SERVERS)
    child = ADAPTERS["mooncake_store"].configure(SubjectSpec(connector="mooncake_store"))
    multi = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [child, child]}}
    assert needed_by(multi) == ("mooncake",)
    assert needed_by(None) == ()


def test_what_differs_from_leg_to_leg_does_not_cost_a_warm_process(tmp_path):
    """A variable of one leg alone that counts as early makes every leg import vLLM anew: right, and far slower."""
    ports = {name: 1 for server in SERVERS.values() for name in server.ports}
    names = {name for server in SERVERS.values() for name in server.env(ports, tmp_path)}
    names |= {name for adapter in ADAPTERS.values() for name in adapter.env}
    assert names | {STORE_VARIABLE} <= LATE_VARIABLES


def test_commands_bind_to_loopback_alone(tmp_path):
    for server in SERVERS.values():
        ports = free_ports(server.ports)
        assert len(set(ports.values())) == len(ports)
        words = " ".join(server.command(ports, tmp_path))
        assert "127.0.0.1" in words and "0.0.0.0" not in words
        assert all(str(port) in words for port in ports.values())


# --- a leg and its server ---------------------------------------------------------------------------------------


def run_leg(tmp_path, leg, source: str):
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    runner = Runner(folder)
    runner._servers = Servers(folder.path / "servers", {"mooncake": spec(source)})
    try:
        return runner.ensure(leg), folder
    finally:
        runner.close()


def test_a_leg_whose_server_does_not_come_up_has_crashed_in_the_servers_words(tmp_path, make_leg):
    observation, folder = run_leg(tmp_path, make_leg(kv_transfer_config=CONFIG), DEAD)
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, "server")
    assert observation.failure.message.startswith("server mooncake ended with exit code 3 before it answered")
    assert folder.read_observation("ab" * 8) == observation


def test_a_leg_that_outlives_its_server_has_crashed_whatever_it_answered(tmp_path, make_leg):
    """It answers one request, the question whether it serves, and ends."""
    once = GOOD.replace("serve_forever()", "handle_request(); child.kill()")
    observation, _ = run_leg(tmp_path, make_leg(kv_transfer_config=CONFIG), once)
    assert (observation.ending, observation.failure.kind) == (Ending.CRASHED, "ServerError")
    assert observation.failure.message.startswith("server mooncake ended with exit code 0 while the leg ran")
    # What the leg saw is kept: without a server it may well have answered everything, by recomputing.
    assert [record.phase for record in observation.phases][-1] is Phase.RESTORE_AGAIN


def test_a_client_that_hangs_in_its_init_is_ended_within_the_served_deadline(tmp_path, make_leg, monkeypatch):
    monkeypatch.setattr("harness.runner.SERVED_LOAD_S", 1.0)
    leg = make_leg(kv_transfer_config=CONFIG, fake={"stages": {"load": "hang"}})
    observation, _ = run_leg(tmp_path, leg, GOOD)
    assert (observation.ending, observation.failure.stage) == (Ending.HUNG, "load")


def test_a_leg_has_its_server_restarted_before_the_phase_that_it_names(tmp_path, make_leg):
    leg = make_leg(kv_transfer_config=CONFIG, server_restarts_before=Phase.RESTORE)
    observation, folder = run_leg(tmp_path, leg, GOOD)
    assert observation.ending is Ending.OK
    assert [record.phase for record in observation.phases][-1] is Phase.RESTORE_AGAIN
    (made,) = (folder.path / "servers").iterdir()
    assert (made / "log").read_text() == "serving\nserving\n"
    assert "server" in observation.seconds


def test_a_server_that_does_not_come_up_again_is_the_legs_crash(tmp_path, make_leg):
    once = "import os, sys\nif os.path.exists('grandchild'): sys.exit(5)\n" + GOOD
    leg = make_leg(kv_transfer_config=CONFIG, server_restarts_before=Phase.RESTORE)
    observation, _ = run_leg(tmp_path, leg, once)
    assert (observation.ending, observation.failure.stage) == (Ending.CRASHED, "server")
    assert observation.failure.message.startswith("server mooncake ended with exit code 5 before it answered")


def test_nobody_who_restarts_it_is_named_within_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path))
    with pytest.raises(LegError, match="the server was not restarted within 0.2 s"):
        server_restart.ask(patience_s=0.2)


def test_a_served_leg_runs_as_any_other_and_its_server_is_gone_afterwards(tmp_path, make_leg):
    observation, folder = run_leg(tmp_path, make_leg(kv_transfer_config=CONFIG), GOOD)
    assert observation.ending is Ending.OK
    (made,) = (folder.path / "servers").iterdir()
    assert ends(int((made / "grandchild").read_text()))
