# SPDX-License-Identifier: MIT
"""L10 on SQLite: what a fork would copy of SQLite's book of locks must never give a child and its parent the same lease."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

#: Every program begins with this. A child ends by `_exit`, and its failure fails the parent, too.
START = """
import contextlib, ctypes, gc, os, signal, sqlite3, subprocess, sys, threading, time, traceback
import rota

url = sys.argv[1]
hour = rota.Every("1h")

def forks(body, fork=os.fork):
    pid = fork()
    if pid == 0:
        signal.alarm(40)  # it must not outlive a test that failed
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        os._exit(0)
    return pid

def ends(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def another(code):
    \"\"\"Ask a process that has nothing to do with this one.\"\"\"
    start = "import rota, sys\\nclient = rota.connect(sys.argv[1], timeout=10)\\n"
    command = [sys.executable, "-c", start + code, url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

def refused(verb, *arguments):
    try:
        verb(*arguments)
    except rota.Unavailable as error:
        assert "fork" in str(error), error
    else:
        raise AssertionError("this process uses the book of its parent")

def free(name):
    return another(f"print(bool(client.try_lease({name!r})))") == "True"

class Pipe:
    \"\"\"Lets one process go on when another says so.\"\"\"
    def __init__(self): self.ends = os.pipe()
    def wait(self): assert os.read(self.ends[0], 1)
    def tell(self): os.write(self.ends[1], b".")
"""


@pytest.fixture
def run(program: Any, tmp_path: Any) -> Any:
    return lambda text, *arguments: program(START + text, f"sqlite://{tmp_path}/rota.db", str(tmp_path), *arguments).end(60)


@pytest.mark.parametrize("clients", ["inherits-its-client", "makes-a-client"])
def test_a_child_keeps_what_it_won_when_its_parent_closes(run: Any, clients: str) -> None:
    run(
        """
client = rota.connect(url)
client.try_lease("warm").release()
won, closed, seen = Pipe(), Pipe(), Pipe()

def body():
    own = client if sys.argv[3] == "inherits-its-client" else rota.connect(url)
    slot, lease = own.try_window("job", hour), own.try_lease("lease")
    assert slot and lease
    won.tell()
    closed.wait()
    slot.handled()
    lease.check()
    seen.tell()
    closed.wait()

child = forks(body)
won.wait()
client.close()  # the last connection of the parent: nobody's lock but the child's keeps the WAL
assert not free("lease")
assert another("print(client.try_window('job', rota.Every('1h')).verdict)") == "busy"
closed.tell()
seen.wait()
assert not free("lease")
assert another("print(client.try_window('job', rota.Every('1h')).verdict)") == "handled"
closed.tell()
ends(child)
""",
        clients,
    )


def test_a_parent_keeps_what_it_won_when_its_child_closes(run: Any) -> None:
    run(
        """
client, other = rota.connect(url), rota.connect(url)
lease = client.try_lease("lease")
other.try_lease("warm").release()

def body():
    assert not client.try_lease("lease") and not other.try_lease("lease")
    client.close()
    other.close()

ends(forks(body))
assert not free("lease")
lease.check()
slot = client.try_window("job", hour)
slot.handled()
assert another("print(client.try_window('job', rota.Every('1h')).verdict)") == "handled"
"""
    )


def test_a_child_of_a_child_and_its_siblings_exclude_each_other(run: Any) -> None:
    run(
        """
client = rota.connect(url, timeout=10)
wins = os.pipe()

def claims(depth):
    if client.try_window("job", hour, ttl="60s"):
        os.write(wins[1], b"x")
    client.try_lease(f"own-{os.getpid()}").release()
    if depth:
        children = [forks(lambda: claims(depth - 1)) for _ in range(2)]
        client.try_lease(f"own-{os.getpid()}").release()
        for child in children:
            ends(child)

claims(3)
os.set_blocking(wins[0], False)
assert os.read(wins[0], 100) == b"x"
"""
    )


def test_several_stores_and_clients_of_one_process(run: Any) -> None:
    run(
        """
urls = [url, url, f"sqlite://{sys.argv[2]}/two.db", f"sqlite://{sys.argv[2]}/three.db"]
clients = [rota.connect(one) for one in urls]
held = [client.try_lease(f"parents-{number}") for number, client in enumerate(clients)]
dropped = rota.connect(url)
dropped.try_lease("warm").release()
dropped.self = dropped  # its connection stays open until the collector comes
del dropped
won, closed = Pipe(), Pipe()

def body():
    gc.collect()
    grants = [client.try_lease(f"childs-{number}") for number, client in enumerate(clients)]
    assert all(grants)
    assert not any(client.try_lease(f"parents-{number}") for number, client in enumerate(clients))
    won.tell()
    closed.wait()
    for grant in grants:
        grant.check()

child = forks(body)
won.wait()
for grant in held:
    grant.check()
for client in clients:
    client.close()
assert not free("childs-0")
with rota.connect(urls[2]) as two, rota.connect(urls[3]) as three:
    assert not two.try_lease("childs-2") and not three.try_lease("childs-3")
closed.tell()
ends(child)
"""
    )


def test_a_fork_waits_for_a_call_of_another_thread(run: Any) -> None:
    """The child would find the file locked for ever, by itself."""
    run(
        """
client = rota.connect(url)
client.try_lease("warm").release()
real, inside, forking = client.driver.clock, threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # registered last, it comes before the others

def slow():
    if threading.current_thread().name == "slow" and not forking.is_set():
        inside.set()
        assert forking.wait(10)  # the transaction has begun
    return real()

client.driver.clock = slow
thread = threading.Thread(target=client.try_lease, args=("threads",), name="slow")
thread.start()
inside.wait()

def body():
    assert client.try_lease("childs")
    assert not client.try_lease("threads")

child = forks(body)
thread.join()
assert client.try_lease("parents")
ends(child)
"""
    )


def test_a_fork_that_can_wait_no_longer_leaves_a_child_that_refuses(run: Any) -> None:
    """The file is locked by somebody else, and a thread waits for it: the parent goes on, the child must not guess."""
    run(
        """
seen = []

def in_child():
    try:
        client.try_lease("hooks")
    except rota.Unavailable as error:
        seen.append(str(error))

assert "rota._fork_gate" not in sys.modules
os.register_at_fork(after_in_child=in_child)  # before the store's own hooks are: it comes first
from rota import _fork_gate

_fork_gate.LONGEST_WAIT = 0.2
client, others = rota.connect(url, timeout=30), [rota.connect(url), rota.connect(f"sqlite://{sys.argv[2]}/two.db")]
for one in others:
    one.try_lease("warm").release()
locked = sqlite3.connect(f"{sys.argv[2]}/rota.db", isolation_level=None)
locked.execute("BEGIN IMMEDIATE")
won = []
thread = threading.Thread(target=lambda: won.append(client.try_lease("threads")))
thread.start()
while not any(line.thread for line in _fork_gate.gate._open_lines()):
    time.sleep(0.001)

def body():
    assert len(seen) == 1 and "was forked" in seen[0], seen
    # every file: another thread may have been anywhere in libsqlite, with any of its mutexes
    for one in (client, *others, rota.connect(url)):
        refused(one.try_lease, "childs")
        refused(one.driver.read, "threads", 1.0)
        assert one.try_lease("childs", on_unavailable="skip").verdict == "unavailable"
        one.close()
    ends(forks(lambda: refused(rota.connect(url).try_lease, "grandchilds")))
    done = subprocess.run([sys.executable, "-c", "import rota, sys; rota.connect(sys.argv[1])", url])
    assert done.returncode == 0
    gc.collect()

ends(forks(body))
locked.execute("COMMIT")
locked.close()
thread.join()
won[0].check()
assert client.try_lease("parents") and others[0].try_lease("others")
assert not free("threads")
assert free("childs")
ends(forks(lambda: client.try_lease("late").check()))  # at a better time
"""
    )


@pytest.mark.parametrize("child", ["claims", "returns"])
def test_a_thread_that_forks_in_the_middle_of_its_own_call(run: Any, child: str) -> None:
    """In the handler of a signal, say. It can't be waited for; the child refuses, and if it goes on with the call that changes nothing."""
    run(
        """
client = rota.connect(url)
client.try_lease("warm").release()
real, forked, middle = client.driver.clock, [], Pipe()

def clock():
    if not forked:
        os.kill(os.getpid(), signal.SIGUSR1)
    return real()

def handler(*_):
    if sys.argv[3] == "claims":
        forked.append(forks(lambda: refused(client.try_lease, "childs")))
    else:
        forked.append(os.fork())
        if forked[0]:
            middle.wait()  # the child goes on first

signal.signal(signal.SIGUSR1, handler)
client.driver.clock = clock
try:
    grant = client.try_lease("own")
except rota.Unavailable as error:
    assert forked == [0] and "fork" in str(error), (forked, error)
    client.close()
    middle.tell()
    os._exit(0)
assert forked[0], "the child has won its parent's lease"
ends(forked[0])
grant.check()
assert not free("own")
assert client.try_lease("more")
""",
        child,
    )


@pytest.mark.parametrize("store", ["open", "closed"])
def test_a_fork_by_c_code_that_only_calls_the_hooks_of_the_child(run: Any, store: str) -> None:
    """As an embedder does that has no need of the others. The child refuses if anything was open."""
    run(
        """
client = rota.connect(url)
lease = client.try_lease("lease")
if sys.argv[3] == "closed":
    client.close()
    client = rota.connect(url)

def fork():
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid

def body():
    if sys.argv[3] == "open":
        refused(client.try_lease, "childs")
        refused(rota.connect(url).try_lease, "childs")
    else:
        assert not client.try_lease("lease")
        client.try_lease("childs").release()

ends(forks(body, fork))
assert free("childs")
assert client.try_lease("parents")
assert not free("lease")
""",
        store,
    )


def test_other_hooks_may_use_the_store(run: Any) -> None:
    """Whenever they were registered: before this module was imported, or after."""
    run(
        """
client, done = None, []

def before():
    if client is not None:
        client.try_lease("before").release()
        done.append("before")

def in_child():
    if client is not None:
        client.try_lease("child").release()
        done.append("child")

assert "rota.sqlite" not in sys.modules
os.register_at_fork(before=before, after_in_child=in_child)
client = rota.connect(url)
client.try_lease("warm").release()
os.register_at_fork(before=before, after_in_child=in_child)

def body():
    assert done == ["before", "before", "child", "child"], done
    won = []
    thread = threading.Thread(target=lambda: won.append(client.try_lease("childs")))
    thread.start()
    thread.join()
    won[0].check()

ends(forks(body))
assert done == ["before", "before"], done
client.try_lease("parents").release()
"""
    )


def test_a_fork_waits_for_a_connection_that_is_being_closed(run: Any) -> None:
    run(
        """
forking, closing = threading.Event(), threading.Event()

class Slow(sqlite3.Connection):
    def close(self):
        if threading.current_thread().name == "slow":
            closing.set()
            assert forking.wait(10)
            time.sleep(0.05)  # whoever does not wait for this forks meanwhile
            closing.clear()
        super().close()

connect = sqlite3.connect
sqlite3.connect = lambda *args, **options: connect(*args, **options, factory=Slow)
client, closed = rota.connect(url), rota.connect(url)
lease = client.try_lease("lease")
closed.try_lease("warm").release()
os.register_at_fork(before=forking.set)
thread = threading.Thread(target=closed.close, name="slow")
thread.start()
closing.wait()

def body():
    assert not closing.is_set()
    assert not client.try_lease("lease")

child = forks(body)
thread.join()
ends(child)
lease.check()
"""
    )


def test_a_driver_that_nobody_has_any_more_leaves_nothing_open(run: Any) -> None:
    run(
        """
from rota.sqlite import SqliteDriver

path = f"{sys.argv[2]}/rota.db"
driver = SqliteDriver(path)
driver.read("job", 5.0)
assert os.path.exists(path + "-wal")
del driver
assert not os.path.exists(path + "-wal")
"""
    )


def test_starting_a_program_closes_nothing(run: Any) -> None:
    """`subprocess` forks in C, and the child only executes. With a `preexec_fn` the hooks are called."""
    run(
        """
client = rota.connect(url)
lease = client.try_lease("lease")
idle = client.driver._idle[0].connection
assert not free("lease")
assert client.driver._idle[0].connection is idle


def claims():
    assert not client.try_lease("lease")

subprocess.run(["true"], preexec_fn=claims, check=True)
assert not free("lease")
lease.release()
assert free("lease")
"""
    )


def test_a_connection_that_is_collected_in_a_child_costs_its_parent_no_lock(run: Any) -> None:
    """Whether the child ends by `sys.exit`, which clears all modules, or lives on without the client."""
    run(
        """
client = rota.connect(url)
lease = client.try_lease("lease")
pid = os.fork()
if pid == 0:
    del client, lease
    gc.collect()
    sys.exit(0)
ends(pid)
assert not free("lease")
lease.release()
assert free("lease")
"""
    )


def test_forks_of_several_threads_among_calls_of_others(run: Any) -> None:
    """No child refuses, none waits for ever, and no slot is won twice."""
    run(
        """
clients = [rota.connect(url, timeout=20), rota.connect(url, timeout=20)]
wins, over, failed = os.pipe(), threading.Event(), []
rounds = 12

def noted(body):
    def run():
        try:
            body()
        except BaseException as error:
            failed.append(error)
            traceback.print_exc()
    return run

def claims():
    while not over.is_set():
        clients[0].try_lease("busy", ttl=10)
        clients[1].driver.read("busy", 20.0)
        with rota.connect(url, timeout=20) as short:
            short.try_lease(f"short-{threading.get_ident()}").release()

def child(number):
    def body():
        for client in clients:
            if client.try_window(f"job-{number}", hour, ttl="60s"):
                os.write(wins[1], b"x")
        assert not clients[0].try_lease("parents")
    return body

def forker():
    for number in range(rounds):
        ends(forks(child(number)))

parents = clients[0].try_lease("parents", ttl=60)
threads = [threading.Thread(target=noted(claims)) for _ in range(2)]
forkers = [threading.Thread(target=noted(forker)) for _ in range(2)]
for thread in threads + forkers:
    thread.start()
for thread in forkers:
    thread.join()
over.set()
for thread in threads:
    thread.join()
assert not failed
parents.check()
assert os.read(wins[0], 1000) == b"x" * rounds
"""
    )


@pytest.mark.by_the_clock
def test_a_call_that_was_interrupted_leaves_nothing_that_a_fork_would_wait_for(run: Any) -> None:
    """As by Ctrl-C, or a time limit that a signal sets: the connection that it dropped is closed by that."""
    run(
        """
from rota._fork_gate import gate

class Interrupt(BaseException): ...

client = rota.connect(url)
client.try_lease("warm").release()
put_back = gate.put_back

def interrupted(line):
    gate.put_back = put_back
    raise Interrupt

gate.put_back = interrupted
with contextlib.suppress(Interrupt):
    client.driver.read("warm", 5.0)
gc.collect()
began = time.monotonic()

def body():
    assert client.try_lease("child")

ends(forks(body))
assert time.monotonic() - began < 1.9  # what a fork waits at the most is 2 s
assert client.try_lease("parent")
"""
    )
