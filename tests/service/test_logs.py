"""An attempt's log outlives Ray, whole or without its middle, and never with the attempt's token."""

import logging
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from service.control.ray_cluster.logs import Logs, bounded, continued, since, whole_length
from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.store import Store
from service.errors import NotFound, Unavailable
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import AttemptFinished, Batch


class Ray:
    """What Ray knows of drivers: their states and outputs, until it is gone."""

    def __init__(self):
        self.states, self.outputs, self.refusals, self.num_reads, self.is_up = {}, {}, {}, 0, True
        self.deleted, self.is_silent = [], False

    def __call__(self):
        return self if self.is_up else None

    def version(self):
        if self.is_silent:
            raise Unavailable("Ray does not answer")
        return "2.60.0"

    def status(self, submission_id):
        return self.states.get(submission_id, RayStatus.MISSING)

    def delete(self, submission_id):
        self.deleted.append(submission_id)

    def log(self, submission_id, *, lines=None):
        self.num_reads += 1
        if submission_id in self.refusals:
            raise Unavailable(self.refusals[submission_id])
        printed = self.outputs.get(submission_id, b"").splitlines(keepends=True)
        yield from printed[-lines:] if lines else printed


class Streaming(Ray):
    """A Ray whose drivers print in pieces of any size."""

    def log(self, submission_id, *, lines=None):
        yield from self.outputs[submission_id]()


@pytest.fixture
def store(tmp_path):
    store = Store.open(Settings(state_dir=tmp_path / "state"))
    yield store
    store.close()


@pytest.fixture
def ray():
    return Ray()


@pytest.fixture
def logs(store, ray):
    return Logs(store, ray)


@pytest.fixture
def job_id(store, ray):
    spec = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}})
    job_id = store.add_job(spec)[0].id
    name = store.attempts.begin(job_id).submission_id
    ray.states[name], ray.outputs[name] = RayStatus.RUNNING, b"hello\n"
    return job_id


def end(store, ray, job_id, *, status=RayStatus.SUCCEEDED):
    number = store.job(job_id).attempt
    finished = AttemptFinished(outcome="failed", reason="why")
    store.attempts.ingest(job_id, number, Batch(stream="driver", sequence=1, records=(finished,)))
    ray.states[store.attempts.one(job_id, number).submission_id] = status
    return store.attempts.one(job_id).ended_at


def test_the_tail_of_a_log_has_bounded_lines_and_the_last_of_them(logs, store, ray, job_id):
    ray.outputs[store.attempts.one(job_id).submission_id] = b"first\n" + b"x" * 1_000_000 + b"\nValueError: last\n\n"

    long, last = logs.tail(job_id, 1, num_lines=2).splitlines()

    assert (len(long), last) == (500, "ValueError: last")


def test_a_running_attempts_log_is_rays(logs, store, ray, job_id):
    first = logs.read(job_id)
    ray.outputs[store.attempts.one(job_id, 1).submission_id] += b"again\n"

    assert first == b"hello\n" and logs.read(job_id) == b"hello\nagain\n"


def test_an_ended_attempts_log_outlives_ray(logs, store, ray, job_id):
    ended_at = end(store, ray, job_id)

    logs.keep_ended(ended_at + 1)
    ray.is_up = False

    assert logs.read(job_id, number=1) == b"hello\n"


def test_a_log_is_kept_once(logs, store, ray, job_id):
    ended_at = end(store, ray, job_id)

    for _ in range(3):
        logs.keep_ended(ended_at + 1)

    assert ray.num_reads == 1 and store.attempts.without_log() == ()


def test_ray_forgets_a_driver_once_its_log_is_kept(logs, store, ray, job_id):
    logs.keep_all()
    assert ray.deleted == []

    ended_at = end(store, ray, job_id)
    logs.keep_ended(ended_at + 1)
    assert ray.deleted == []  # Ray itself looks at it once more, and would put it back
    for after_s in (20, 21):
        logs.keep_ended(ended_at + after_s)

    assert ray.deleted == [store.attempts.one(job_id, 1).submission_id]


def test_a_driver_that_ray_does_not_forget_costs_no_log(logs, store, ray, job_id, monkeypatch):
    ended_at = end(store, ray, job_id)
    with monkeypatch.context() as patched:
        patched.setattr(ray, "delete", lambda _: (_ for _ in ()).throw(Unavailable("busy")))
        for after_s in (1, 20):
            logs.keep_ended(ended_at + after_s)
    assert store.attempts.without_log() == () and logs.read(job_id) == b"hello\n"

    logs.keep_ended(ended_at + 200)

    assert len(ray.deleted) == 1


def test_a_log_for_which_its_job_left_a_link_holds_up_no_other(logs, store, ray, job_id, tmp_path):
    storage = store.storage
    ended_at = end(store, ray, job_id)
    place = Path(storage.log_url(job_id, 1).removeprefix("file://"))
    place.parent.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    place.symlink_to(outside)

    logs.keep_ended(ended_at + 1)

    assert store.attempts.without_log() == () and list(outside.iterdir()) == []


def test_a_log_that_comes_while_its_job_is_deleted_goes_with_it(logs, store, ray, job_id, monkeypatch):
    ended_at = end(store, ray, job_id)
    store.cancel(job_id)
    keep = logs._keep
    monkeypatch.setattr(logs, "_keep", lambda attempt, log: (store.delete(job_id), keep(attempt, log)))

    logs.keep_ended(ended_at + 1)

    assert store.storage.sizes(job_id) == {}


def test_a_driver_that_has_reported_its_end_may_say_its_last_words(logs, store, ray, job_id):
    ended_at = end(store, ray, job_id, status=RayStatus.RUNNING)

    logs.keep_ended(ended_at + 1)
    ray.outputs[store.attempts.one(job_id, 1).submission_id] += b"bye\n"
    assert store.attempts.without_log() != ()
    logs.keep_ended(ended_at + 31)

    assert store.attempts.without_log() == ()
    ray.is_up = False
    assert logs.read(job_id) == b"hello\nbye\n"


def test_a_live_attempts_log_is_kept_before_ray_is_stopped(logs, ray, job_id):
    logs.keep_all()
    ray.is_up = False

    assert logs.read(job_id) == b"hello\n"


def test_a_log_that_was_to_be_kept_is_kept_when_ray_is_stopped_first(logs, store, ray, job_id):
    ended_at = end(store, ray, job_id, status=RayStatus.RUNNING)

    logs.keep_ended(ended_at + 1)
    logs.keep_all()
    ray.is_up = False

    assert logs.read(job_id) == b"hello\n"


def test_what_ray_has_lost_does_not_replace_what_was_kept(logs, store, ray, job_id):
    logs.keep_all()
    ray.outputs.clear()
    ended_at = end(store, ray, job_id, status=RayStatus.MISSING)

    logs.keep_ended(ended_at + 1)

    assert logs.read(job_id) == b"hello\n"


def test_the_attempts_own_token_is_not_shown(logs, store, ray, job_id):
    token = store.attempts.token(job_id, 1)
    ray.outputs[store.attempts.one(job_id, 1).submission_id] = f"environ: WIRETUNE_TOKEN={token}\n".encode()
    live = logs.read(job_id)

    logs.keep_ended(end(store, ray, job_id) + 1)
    ray.is_up = False

    assert live == logs.read(job_id) == b"environ: WIRETUNE_TOKEN=[token]\n"


def test_a_storage_that_is_full_is_tried_again_later(logs, store, ray, job_id, monkeypatch):
    ended_at = end(store, ray, job_id)

    def full(*_):
        raise Unavailable("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(type(logs._storage), "write", full)
        for after_s in (1, 2, 3):
            logs.keep_ended(ended_at + after_s)
    assert ray.num_reads == 1
    logs.keep_ended(ended_at + 12)

    ray.is_up = False
    assert logs.read(job_id) == b"hello\n"


def test_a_job_whose_folder_takes_no_log_holds_up_no_other_is_warned_of_once_and_tried_again(
    logs, store, ray, job_id, caplog
):
    ended_at = end(store, ray, job_id)
    blocked = Path(store.storage.job_url(job_id).removeprefix("file://"))
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.touch()  # as a folder of another user does, it takes no file
    other = store.add_job(store.job(job_id).spec)[0].id
    ray.outputs[store.attempts.begin(other).submission_id] = b"other\n"
    end(store, ray, other)

    for after_s in (1, 2, 62, 63):
        logs.keep_ended(ended_at + after_s)
    assert [attempt.job_id for attempt in store.attempts.without_log()] == [job_id]
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1 and ray.num_reads == 1 + 2  # not at once again
    blocked.unlink()
    logs.keep_ended(ended_at + 123)

    ray.is_up = False
    assert (logs.read(job_id), logs.read(other)) == (b"hello\n", b"other\n")


def test_a_log_that_ray_refuses_does_not_hold_up_the_others(logs, store, ray, job_id):
    ray.refusals[store.attempts.one(job_id, 1).submission_id] = "Ray answered 500: invalid start byte"
    end(store, ray, job_id)
    other = store.add_job(store.job(job_id).spec)[0].id
    ray.outputs[store.attempts.begin(other).submission_id] = b"other\n"
    ended_at = end(store, ray, other)

    logs.keep_ended(ended_at + 1)

    ray.is_up = False
    assert logs.read(other) == b"other\n"


def test_a_log_that_ray_goes_on_refusing_is_given_up_and_says_why(logs, store, ray, job_id):
    logs.keep_all()
    ended_at = end(store, ray, job_id)
    ray.refusals[store.attempts.one(job_id, 1).submission_id] = "invalid start byte"

    for after_s in (1, 2, 300, 700):
        logs.keep_ended(ended_at + after_s)

    assert store.attempts.without_log() == () and ray.num_reads == 1 + 4  # not at once again, and its last lines once
    assert logs.read(job_id) == b"hello\n[this log ends here: invalid start byte]\n"
    assert ray.deleted == []  # where the rest may be read


def test_of_a_log_that_takes_too_long_the_last_lines_are_kept(logs, store, ray, job_id, monkeypatch):
    def slow(_name, *, lines=None):
        if lines is None:
            raise Unavailable("took longer than 30 s")
        return iter([b"ValueError: last\n"])

    logs.keep_all()
    ended_at = end(store, ray, job_id)
    monkeypatch.setattr(ray, "log", slow)

    for after_s in (1, 700):
        logs.keep_ended(ended_at + after_s)

    missing = b"[a part of this log is missing here: took longer than 30 s]\n"
    assert logs.read(job_id) == b"hello\n" + missing + b"ValueError: last\n"


@pytest.fixture
def kept_after(logs, store, ray, job_id, monkeypatch):
    """Return a function: what is kept of a log saved at `saved` bytes, of which Ray then gives its last lines alone."""
    name, log = store.attempts.one(job_id, 1).submission_id, ray.log

    def slow(name, *, lines=None):
        if lines is None:
            raise Unavailable("took longer than 30 s")
        return log(name, lines=lines)

    def kept(whole, saved):
        ray.outputs[name] = whole[:saved]
        logs.keep_all()
        ray.outputs[name] = whole
        monkeypatch.setattr(ray, "log", slow)
        ended_at = end(store, ray, job_id)
        for after_s in (1, 700):
            logs.keep_ended(ended_at + after_s)
        return logs.read(job_id)

    return kept


@pytest.mark.parametrize("num_lines", [100, 300_000])
def test_last_lines_that_were_saved_before_are_not_kept_twice(kept_after, num_lines):
    log = b"".join(f"step {number:08}\n".encode() for number in range(num_lines))

    assert kept_after(log, len(log)) == bounded([log])


def test_a_log_that_was_cut_before_its_last_lines_came_tells_its_length(kept_after):
    log = b"".join(f"step {number:08}\n".encode() for number in range(400_000))
    saved = len(log) * 9 // 10
    kept = kept_after(log, saved)

    last = log[-1000 * len(b"step 00000000\n") :]
    gap = b"[a part of this log is missing here: took longer than 30 s]\n"
    assert kept.endswith(gap + last) and whole_length(kept) == saved + len(gap) + len(last)
    assert since(kept, saved) == gap + last


def test_a_log_that_ray_refuses_for_a_while_is_kept_whole(logs, store, ray, job_id):
    ended_at = end(store, ray, job_id)
    ray.refusals[store.attempts.one(job_id, 1).submission_id] = "busy"
    logs.keep_ended(ended_at + 1)
    ray.refusals.clear()

    for after_s in (100, 200):
        logs.keep_ended(ended_at + after_s)

    assert store.attempts.without_log() == () and logs.read(job_id) == b"hello\n"
    assert len(ray.deleted) == 1


def test_time_in_which_ray_does_not_answer_at_all_gives_up_no_log(logs, store, ray, job_id):
    ended_at = end(store, ray, job_id)
    ray.refusals[store.attempts.one(job_id, 1).submission_id] = "Ray does not answer"
    logs.keep_ended(ended_at + 1)
    ray.is_silent = True
    for after_s in (100, 1000):
        logs.keep_ended(ended_at + after_s)
    ray.is_silent = False
    logs.keep_ended(ended_at + 1100)
    ray.refusals.clear()

    logs.keep_ended(ended_at + 1200)

    assert store.attempts.without_log() == () and logs.read(job_id) == b"hello\n"


def test_while_ray_is_silent_what_was_kept_is_read(logs, store, ray, job_id):
    ray.refusals[store.attempts.one(job_id, 1).submission_id] = "Ray does not answer"
    with pytest.raises(Unavailable, match="does not answer"):
        logs.read(job_id)
    ray.refusals.clear()

    logs.keep_all()
    ray.refusals[store.attempts.one(job_id, 1).submission_id] = "Ray does not answer"

    assert logs.read(job_id) == b"hello\n"


@pytest.mark.parametrize("offset", [0, 500, 50_000, 998_000, 1_088_000])
def test_whoever_reads_on_misses_nothing_of_what_a_shortened_log_still_has(offset):
    lines = [f"line {number:06d}\n".encode() for number in range(100_000)]
    whole = b"".join(lines)
    kept = bounded([whole], head=1000, tail=3000)
    first, _, last = kept.partition(b"[...")
    end = len(whole) - len(last.partition(b"]\n")[2])

    found = since(kept, offset)

    if offset >= end:
        assert found == whole[offset:]
    elif offset > len(first):
        assert found == kept[len(first) :]
    else:
        assert found == kept[offset:]


@pytest.mark.parametrize(
    "log", [b"x" * 5_000_000, b"[... " + b"9" * 5000 + b" bytes are cut here; the whole log had 1 ...]\n"]
)
def test_a_log_that_its_job_has_replaced_costs_no_more_than_a_kept_one(logs, store, ray, job_id, log):
    logs.keep_ended(end(store, ray, job_id) + 1)
    storage = store.storage
    storage.write(storage.log_url(job_id, 1), log)

    found = logs.read(job_id)

    assert len(found) < 4_100_000 and found[:5000] == log[:5000]


def test_a_log_that_is_lost_is_said_to_be(logs, store, ray, job_id):
    ray.outputs.clear()

    logs.keep_ended(end(store, ray, job_id, status=RayStatus.MISSING) + 1)

    with pytest.raises(NotFound, match="Ray ended before it could be kept"):
        logs.read(job_id)


def test_a_log_that_a_ray_has_which_is_taken_over_is_not_said_to_be_lost(store, ray, job_id):
    end(store, ray, job_id)
    ray.is_up = False
    logs = Logs(store, ray, lambda: not ray.is_up)
    with pytest.raises(Unavailable, match="taken over"):
        logs.read(job_id)

    ray.is_up = True

    assert logs.read(job_id) == b"hello\n"


@pytest.mark.parametrize(("number", "said"), [(None, "has not had any yet"), (3, "such attempt")])
def test_an_attempt_that_never_was_has_no_log(logs, store, number, said):
    spec = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}})

    with pytest.raises(NotFound, match=said):
        logs.read(store.add_job(spec)[0].id, number=number)


def test_a_long_log_keeps_its_ends_in_whole_lines():
    lines = [f"line {number}\n".encode() for number in range(100_000)]
    whole = b"".join(lines)

    kept = bounded([whole], head=1000, tail=3000)

    assert len(kept) <= 4100
    found = kept.splitlines(keepends=True)
    cut = next(index for index, line in enumerate(found) if line.startswith(b"[..."))
    assert found[:cut] == lines[:cut] and found[cut + 1 :] == lines[-(len(found) - cut - 1) :]
    num_cut = len(whole) - len(b"".join(found[:cut] + found[cut + 1 :]))
    assert f"{num_cut} bytes".encode() in found[cut] and str(len(whole)).encode() in found[cut]


@pytest.mark.parametrize("log", [b"", b"short\n", b"x" * 4000])
def test_a_short_log_is_kept_as_it_is(log):
    assert bounded([log], head=1000, tail=3000) == log


def test_a_log_of_one_endless_line_is_cut_all_the_same():
    assert len(bounded([b"x" * 1_000_000], head=1000, tail=3000)) < 4200


@given(
    st.lists(st.binary(max_size=9).map(lambda piece: piece.replace(b"x", b"\n"))),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_what_is_left_of_a_log_does_not_depend_on_its_pieces(pieces, head, tail):
    whole = b"".join(pieces)

    kept = bounded(pieces, head=head, tail=tail)

    assert kept == bounded([whole], head=head, tail=tail)
    assert whole_length(kept) == len(whole)


@given(
    st.lists(st.binary(max_size=9).map(lambda piece: piece.replace(b"x", b"\n"))),
    st.binary(max_size=40).map(lambda piece: piece.replace(b"y", b"\n")),
    st.integers(0, 30),
    st.integers(1, 30),
)
def test_a_log_that_was_cut_goes_on_as_if_it_had_been_cut_at_its_end(pieces, more, head, tail):
    kept = bounded(pieces, head=head, tail=tail)

    assert continued(kept, more, head=head, tail=tail) == bounded([*pieces, more], head=head, tail=tail)


def test_a_log_of_any_length_is_read_and_kept_with_its_last_words(store, job_id):
    name, token = store.attempts.one(job_id).submission_id, store.attempts.token(job_id, 1).encode()
    ray = Streaming()

    def printed():
        yield b"starts \xff\n"
        yield from (b"a line of a chatty model \n" * 40_000 for _ in range(100))
        for number in range(0, len(token), 10):  # across the borders of pieces
            yield token[number : number + 10]
        yield b"\nTraceback\nValueError: last\n"

    ray.states[name], ray.outputs[name] = RayStatus.RUNNING, printed
    logs = Logs(store, ray)
    live = logs.read(job_id)
    logs.keep_ended(end(store, ray, job_id) + 1)
    ray.is_up = False

    assert live.startswith(b"starts \xff\n") and live.endswith(b"\n[token]\nTraceback\nValueError: last\n")
    assert len(live) < 4_100_000 and whole_length(live) > 100_000_000
    assert logs.read(job_id) == live
