"""The queue's decisions, for any set of jobs: who starts, who is paused, who waits for what."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from service.control.queue.capacity import Node, Shape, Size, total
from service.control.queue.plan import plan, with_more_trials
from service.control.queue.queued import Rules, Running, Waiting
from service.control.queue.quota_limits import quota_conflicts
from service.job.priority import Priority
from service.wire.queue import QuotaKind, QuotaLimits, WaitKind

NOW = 1_000_000.0
HOUR_S = 3600.0
RULES = Rules(aging_s=12 * HOUR_S, backfill_s=HOUR_S, min_run_s=600.0)
NODES = [Node(cpus=8)]


def job(name, *, workers=1, least=None, cpus=1.0, gpus=0.0, trials=1, waited_s=0.0, **fields):
    values = {"owner": "anna", "project": "red", "priority": Priority.NORMAL, "queued_at": NOW - waited_s}
    shape = Shape(workers, 1, cpus, gpus, 1, trials, least=least or workers)
    return Waiting(job_id=name, shape=shape, **(values | fields))


def runs(name, *, workers=1, gpus=0.0, ran_s=HOUR_S, **fields):
    values = {"owner": "bert", "project": "blue", "priority": Priority.NORMAL, "size": Size(workers, gpus, workers)}
    return Running(job_id=name, began_at=NOW - ran_s, **(values | fields))


def decide(waiting, running=(), *, nodes=NODES, quotas=None, recent=None, now=NOW):
    return plan(waiting, running, nodes, quotas=quotas or {}, recent=recent or {}, rules=RULES, now=now)


def started(decided):
    return [start.job.job_id for start in decided.start]


def kinds(decided):
    return {place.job.job_id: place.kind for place in decided.places}


def places(decided):
    return [place.job.job_id for place in decided.places]


def test_jobs_of_a_project_start_oldest_first_while_there_is_room():
    decided = decide([job("c", workers=4), job("a", workers=4), job("b", workers=4)])

    assert started(decided) == ["a", "b"]
    assert kinds(decided)["c"] is WaitKind.ROOM


def test_four_jobs_of_half_a_core_run_together_on_two_cores():
    decided = decide([job(f"j{number}", cpus=0.5) for number in range(4)], nodes=[Node(cpus=2)])

    assert len(decided.start) == 4


def test_tenths_of_a_core_add_up():
    decided = decide([job(f"j{number}", cpus=0.1) for number in range(11)], nodes=[Node(cpus=1)])

    assert len(decided.start) == 10


def test_a_higher_priority_goes_first_and_an_old_job_rises():
    fresh = [job("low", priority=Priority.LOW), job("normal"), job("high", priority=Priority.HIGH)]
    old = job("old", priority=Priority.LOW, waited_s=25 * HOUR_S)

    assert places(decide(fresh)) == ["high", "normal", "low"]
    assert places(decide([*fresh, old])) == ["high", "old", "normal", "low"]  # it counts as high, and red had its turn


def test_an_overdue_job_is_before_every_other_however_urgent():
    overdue = job("overdue", workers=8, priority=Priority.LOW, waited_s=4 * 12 * HOUR_S)
    urgent = job("urgent", project="blue", priority=Priority.URGENT)

    decided = decide([urgent, overdue], [runs("r", workers=4, priority=Priority.LOW)])

    assert places(decided) == ["overdue", "urgent"]
    assert (started(decided), decided.pause) == ([], ())


def test_projects_take_turns_by_their_weights():
    waiting = [job(f"{project}{number:02}", project=project) for project in ("red", "blue") for number in range(8)]
    quotas = {(QuotaKind.PROJECT, "red"): QuotaLimits(weight=3.0)}

    projects = [start.job.project for start in decide(waiting, quotas=quotas).start]

    assert (projects.count("red"), projects.count("blue")) == (6, 2)


def test_a_project_that_had_much_lately_waits_for_one_that_had_little():
    waiting = [job("a", workers=8, project="red"), job("b", workers=8, project="blue")]

    assert started(decide(waiting, recent={"red": Size(cpus=4.0)})) == ["b"]


def test_the_dominant_resource_counts():
    nodes = [Node(cpus=100, gpus=4)]
    waiting = [job("a", project="red", gpus=1.0), job("b", project="blue", gpus=1.0)]
    running = [runs("r", project="red", workers=1, gpus=3.0), runs("s", project="blue", workers=50)]

    assert started(decide(waiting, running, nodes=nodes)) == ["b"]  # half of the CPUs is less than 3/4 of the GPUs


# -- backfill ----------------------------------------------------------------------------------------------


def test_a_small_job_passes_a_large_one_only_if_it_ends_before_that_could_start():
    running = [runs("r", workers=6, ends_by=NOW + 1000.0)]
    large = job("a", workers=8)

    short, long = job("b", seconds=500.0), job("c", seconds=1500.0)

    decided = decide([large, short, long, job("d")], running)
    assert started(decided) == ["b"]
    assert kinds(decided) == {"a": WaitKind.ROOM, "b": WaitKind.STARTS, "c": WaitKind.BEHIND, "d": WaitKind.BEHIND}
    assert {place.behind.job_id for place in decided.places if place.behind} == {"a"}


def test_a_job_passes_that_leaves_a_large_one_its_room():
    running = [runs("r", workers=4, ends_by=NOW + 1000.0)]

    assert started(decide([job("a", workers=6), job("b"), job("c"), job("d")], running)) == ["b", "c"]


def test_where_no_budget_tells_others_pass_for_a_bounded_time_alone():
    running = [runs("r", workers=4)]
    short = job("b", seconds=600.0)

    for waited_s, passes in ((0.0, ["b"]), (2000.0, ["b"]), (3000.0, []), (10_000.0, [])):
        assert started(decide([job("a", workers=8, waited_s=waited_s), short], running)) == passes


def test_a_job_without_gpus_passes_one_that_waits_for_gpus():
    nodes = [Node(cpus=8, gpus=2)]
    running = [runs("r", gpus=2.0)]

    decided = decide([job("a", gpus=1.0), job("b", workers=6)], running, nodes=nodes)

    assert started(decided) == ["b"]


def test_a_job_that_has_lost_a_machine_goes_on_with_what_is_free_and_a_new_one_waits_for_all():
    running, nodes = [runs("other", workers=2)], [Node(cpus=1)] * 4

    for attempt, expected in ((1, [2]), (0, [])):
        decided = decide([job("elastic", workers=3, least=1, attempt=attempt)], running, nodes=nodes)
        assert [start.size.workers for start in decided.start] == expected
    inelastic = decide([job("rigid", workers=3, attempt=1)], running, nodes=nodes)
    assert kinds(inelastic) == {"rigid": WaitKind.ROOM}


def test_a_job_starts_with_the_workers_that_the_cluster_holds_if_they_are_enough():
    nodes = [Node(cpus=1)] * 3

    decided = decide([job("elastic", workers=4, least=2, trials=2)], nodes=nodes)

    assert [(start.size.workers, start.trials) for start in decided.start] == [(3, 1)]
    assert kinds(decide([job("never", workers=5, least=4)], nodes=nodes)) == {"never": WaitKind.NEVER}


def test_a_job_grows_into_room_that_nobody_waits_for_once_it_has_a_checkpoint():
    def grows(free, waiting=(), **fields):
        larger = Shape(3, 1, 1.0, 0.0, 1, 1, least=3)
        small = runs("small", workers=2, **({"larger": larger, "ran_s": 60, "grows_at": NOW} | fields))
        return decide(waiting, [small], nodes=[Node(cpus=1)] * (2 + free)).grow

    assert grows(1) == ("small",)
    assert grows(0) == ()
    assert grows(1, grows_at=NOW + 1) == ()
    assert grows(1, may_pause=False) == ()
    assert grows(1, [job("first")]) == ()
    assert grows(1, [job("large", workers=3)]) == ()  # for which the room is kept


def test_a_job_trains_more_trials_at_a_time_once_there_is_room_for_so_many_that_they_save_a_round():
    def grows(trials, free, *, rest=8, at_once=None):
        larger = with_more_trials(Shape(2, 1, 1.0, 0.0, 1, rest, at_once=at_once), trials)
        few = runs("few", workers=2 * trials, larger=larger, grows_at=NOW)
        return decide([], [few], nodes=[Node(cpus=1)] * (2 * trials + free)).grow == ("few",)

    assert grows(2, free=2) and not grows(2, free=1)
    assert grows(4, free=8) and not grows(4, free=6)  # 5, 6 and 7 at a time would need two rounds as well
    assert not grows(8, free=64) and not grows(2, free=64, at_once=2)
    assert grows(1, free=2, rest=2) and not grows(2, free=64, rest=2)

    (resumed,) = decide([job("few", workers=2, trials=8, attempt=1)], nodes=[Node(cpus=1)] * 6).start
    assert resumed.trials == 3


def test_a_job_does_not_start_in_room_that_is_free_in_pieces():
    nodes = [Node(cpus=4)] * 3
    running = [runs(name, size=Size(cpus=3.0, workers=1)) for name in ("r", "s", "t")]
    whole, small = job("a", cpus=3.0), job("b", workers=3)

    decided = decide([whole, small], running, nodes=nodes)
    assert (started(decided), kinds(decided)) == ([], {"a": WaitKind.ROOM, "b": WaitKind.BEHIND})
    assert started(decide([small], running, nodes=nodes)) == ["b"]
    assert started(decide([whole, job("b", cpus=2.0)], running[:1], nodes=nodes)) == ["a", "b"]
    # a core is free on a node too small for `a`, but `b` could take one of another, and keep these in pieces
    four = [*nodes, Node(cpus=1)]
    for waited_s, passes in ((HOUR_S - 1, ["b"]), (HOUR_S, [])):
        assert started(decide([replace(whole, queued_at=NOW - waited_s), job("b")], running, nodes=four)) == passes
    # nothing that is left on a node is given twice
    assert started(decide([job(name, cpus=2.0) for name in "abc"], running[:1], nodes=nodes[:2])) == ["a", "b"]


def test_a_job_does_not_grow_into_room_that_is_free_in_pieces():
    larger = Shape(4, 1, 3.0, 0.0, 1, 1, least=4)
    elastic = runs("elastic", size=Size(cpus=9.0, workers=3), larger=larger)
    other = runs("other", workers=4)

    assert decide([], [elastic, other], nodes=[Node(cpus=4)] * 4).grow == ()  # 3 cores are free, 1 on each of 3 nodes
    assert decide([], [elastic, other], nodes=[Node(cpus=4)] * 5).grow == ("elastic",)


def test_a_job_that_has_begun_goes_on_with_as_many_workers_as_single_nodes_have_room_for():
    running = [runs(name, size=Size(cpus=2.0, workers=1)) for name in "ab"]

    decided = decide([job("elastic", workers=4, least=1, cpus=3.0, attempt=1)], running, nodes=[Node(cpus=4)] * 4)

    assert [start.size.workers for start in decided.start] == [3]


@pytest.mark.parametrize(("limit", "grown"), [(None, ("small",)), (5, ("small",)), (4, ())])
def test_a_job_is_not_paused_for_a_worker_that_its_quota_has_no_room_for(limit, grown):
    larger = Shape(3, 1, 1.0, 0.0, 1, 1, least=3)
    small = runs("small", workers=2, larger=larger, ran_s=60, grows_at=NOW, owner="ada")
    beside = runs("beside", workers=2, owner="ada")
    quotas = {(QuotaKind.OWNER, "ada"): QuotaLimits(workers=limit)}

    assert decide([], [small, beside], nodes=[Node(cpus=1)] * 5, quotas=quotas).grow == grown


def test_a_quota_that_has_room_for_one_worker_lets_one_job_grow():
    larger = Shape(3, 1, 1.0, 0.0, 1, 1, least=3)
    small = [runs(name, workers=2, larger=larger, ran_s=60, grows_at=NOW, owner="ada") for name in ("a", "b")]
    quotas = {(QuotaKind.OWNER, "ada"): QuotaLimits(workers=5)}

    assert decide([], small, nodes=[Node(cpus=1)] * 9, quotas=quotas).grow == ("a",)


@pytest.mark.parametrize("limits", [QuotaLimits(running=2), QuotaLimits(workers=6)], ids=["running", "workers"])
def test_a_job_does_not_grow_while_a_quota_of_its_own_is_kept_for_one_that_waits(limits):
    larger = Shape(3, 1, 1.0, 0.0, 1, 1, least=3)
    small = [
        runs(f"of-{owner}", workers=2, larger=larger, ran_s=60, grows_at=NOW, owner=owner) for owner in ("ada", "bert")
    ]
    running = [*small, runs("beside", workers=3, owner="ada")]

    def grown(*waiting):
        return decide(waiting, running, nodes=[Node(cpus=1)] * 20, quotas={(QuotaKind.OWNER, "ada"): limits}).grow

    assert grown() == ("of-ada", "of-bert")
    assert grown(job("waits", workers=4, owner="ada")) == ("of-bert",)


def test_a_job_that_has_begun_goes_on_with_the_workers_that_its_quota_has_room_for():
    quotas = {(QuotaKind.OWNER, "ada"): QuotaLimits(workers=6)}
    beside = runs("beside", workers=3, owner="ada")

    def started(attempt):
        asks = job("a", workers=4, least=2, attempt=attempt, owner="ada")
        return [each.size.workers for each in decide([asks], [beside], nodes=[Node(cpus=1)] * 9, quotas=quotas).start]

    assert started(attempt=1) == [3]
    assert started(attempt=0) == []  # a new one waits for all


def test_a_job_that_has_begun_goes_on_with_fewer_workers_once_its_quota_has_shrunk_below_its_count():
    quotas = {(QuotaKind.OWNER, "ada"): QuotaLimits(workers=3)}

    def decided(running=(), least=2, **fields):
        asks = job("a", workers=4, least=least, owner="ada", **fields)
        return decide([asks], running, nodes=[Node(cpus=1)] * 9, quotas=quotas)

    assert [each.size.workers for each in decided(attempt=1).start] == [3]
    assert kinds(decided(attempt=0)) == {"a": WaitKind.NEVER}  # a new one would not begin with all
    assert kinds(decided(attempt=1, least=4)) == {"a": WaitKind.NEVER}
    full = decided([runs("beside", workers=2, owner="ada")], attempt=1)
    assert (kinds(full), full.places[0].size.workers) == ({"a": WaitKind.QUOTA}, 3)


@pytest.mark.parametrize(("beside", "trials", "size"), [(2, 2, 4), (5, 1, 2), (6, 1, 2), (7, 1, 1)])
def test_a_job_that_has_begun_trains_fewer_trials_at_a_time_before_it_goes_on_with_fewer_workers(beside, trials, size):
    asks = job("a", workers=2, trials=4, least=1, attempt=1)

    (start,) = decide([asks], [runs("beside", workers=beside)]).start

    assert (start.trials, start.size.workers) == (trials, size)


def test_the_missing_workers_are_told():
    (place,) = decide([job("a", workers=8)], [runs("r", workers=2)]).places

    assert (place.number, place.missing, place.size.workers) == (1, 2, 8)


KINDS = [Node(cpus=8, gpus=8, accelerator=kind) for kind in ("A100", "H100")]


def on(kind, name, *, workers=8, memory_gb=0.0, **fields):
    """A job of one-GPU workers on nodes of this kind; empty: any."""
    waits = job(name, workers=workers, gpus=1.0, **fields)
    return replace(waits, shape=waits.shape._replace(accelerator=kind, memory_gb=memory_gb))


def runs_on(kind, name, *, workers=8, **fields):
    return runs(name, size=on(kind, name, workers=workers).shape.one, **fields)


@pytest.mark.parametrize("others", ["", "H100"])
def test_a_job_that_waits_for_one_kind_of_gpu_keeps_no_room_of_another(others):
    waiting = [on("A100", "a", waited_s=10 * HOUR_S), on(others, "b", workers=2), on(others, "c", workers=6)]

    decided = decide(waiting, [runs_on("A100", "r")], nodes=KINDS)

    assert started(decided) == ["b", "c"] and kinds(decided)["a"] is WaitKind.ROOM


@pytest.mark.parametrize(("full_gb", "waited_s", "passes"), [(500, 9.0, True), (450, 9.0, True), (450, HOUR_S, False)])
def test_a_job_that_waits_for_much_memory_keeps_no_node_that_is_too_small_for_it(full_gb, waited_s, passes):
    nodes = [Node(cpus=8, memory_gb=memory_gb) for memory_gb in (500, 60, 60)]
    running = [runs("r", size=Size(cpus=1.0, workers=1, memory_gb=full_gb))]
    big, small = (
        replace(waits, shape=waits.shape._replace(memory_gb=memory_gb))
        for waits, memory_gb in ((job("big", waited_s=waited_s), 100.0), (job("small", workers=4), 1.0))
    )

    decided = decide([big, small], running, nodes=nodes)

    # small jobs that Ray could put on the large node, and so hold it for ever, pass for as long as any others
    assert started(decided) == (["small"] if passes else [])
    assert kinds(decided)["big"] is WaitKind.ROOM


def test_pieces_of_the_kind_that_a_job_waits_for_are_kept_for_it():
    nodes, running = KINDS, [runs_on("A100", "r", workers=4), runs_on("H100", "s", workers=8, ends_by=NOW + 600.0)]
    waiting = [on("A100", "a", waited_s=2 * HOUR_S), on("", "any", workers=4)]

    assert started(decide(waiting, running, nodes=nodes)) == []  # on the A100s it would hold `a` up for ever


def test_a_job_of_another_kind_takes_from_the_room_that_others_may_pass_with():
    nodes = [*KINDS, Node(cpus=8, gpus=4, accelerator="A100")]
    running = [runs_on("A100", "r", workers=6), runs_on("H100", "s", workers=4)]
    first, on_h100, of_any = on("A100", "a", waited_s=9.0), on("H100", "b", workers=4), on("", "c", workers=2)

    assert started(decide([first, of_any], running, nodes=nodes)) == ["c"]
    assert started(decide([first, on_h100, of_any], running, nodes=nodes)) == ["b"]


@pytest.mark.parametrize("nodes", [KINDS, KINDS[::-1]], ids=["first", "last"])
@pytest.mark.parametrize("asks", [{"kind": "A100"}, {"kind": "", "memory_gb": 40.0}], ids=["kind", "memory"])
def test_a_stream_of_jobs_that_can_run_anywhere_starves_none_that_needs_certain_nodes(nodes, asks):
    nodes = [replace(node, memory_gb={"A100": 320.0, "H100": 32.0}[node.accelerator]) for node in nodes]
    first, lasts_s, step_s = on(name="first", **asks), 1800.0, 300.0
    running = [runs_on("", f"r{number}", workers=4, ran_s=400.0 * number) for number in range(4)]
    for number in range(60):
        now = NOW + number * step_s
        running = [each for each in running if each.began_at + lasts_s > now]
        new = [on("", f"s{number:02}{each}", workers=4, memory_gb=4.0, project="blue") for each in "abcd"]
        decided = decide([first, *new], running, nodes=nodes, recent={"blue": Size(cpus=8.0)}, now=now)
        if "first" in started(decided):
            break
        running += [runs(each.job.job_id, size=each.size, ran_s=NOW - now) for each in decided.start]

    assert 0 < now - NOW <= RULES.backfill_s + lasts_s + step_s


# -- preemption --------------------------------------------------------------------------------------------


def test_a_higher_priority_pauses_the_lowest_and_youngest_and_no_more_than_it_takes():
    running = [
        runs("low-old", workers=2, priority=Priority.LOW, ran_s=9000.0),
        runs("low-young", workers=2, priority=Priority.LOW, ran_s=1000.0),
        runs("normal", workers=4),
    ]
    urgent = job("u", workers=2, priority=Priority.URGENT)

    decided = decide([urgent], running)
    assert [each.job_id for each in decided.pause] == ["low-young"]
    assert kinds(decided) == {"u": WaitKind.PREEMPTS}

    more = decide([replace(urgent, shape=Shape(6, 1, 1.0, 0.0, 1, 1))], running)
    assert {each.job_id for each in more.pause} == {"low-old", "normal"}


def test_a_victim_that_is_not_needed_beside_a_later_one_is_spared():
    running = [runs("small", workers=1, priority=Priority.LOW), runs("large", workers=7)]

    decided = decide([job("u", workers=7, priority=Priority.HIGH)], running)

    assert [each.job_id for each in decided.pause] == ["large"]


@pytest.mark.parametrize(
    "spared",
    [{"priority": Priority.HIGH}, {"ran_s": 599.0, "priority": Priority.LOW}, {"may_pause": False}],
)
def test_nobody_is_paused_for_an_equal_too_early_or_while_he_starts(spared):
    decided = decide([job("h", workers=8, priority=Priority.HIGH)], [runs("r", workers=8, **spared)])

    assert (decided.pause, kinds(decided)) == ((), {"h": WaitKind.ROOM})


def test_nobody_is_paused_where_that_would_not_make_room():
    running = [runs("r", workers=4, priority=Priority.LOW), runs("s", workers=4, priority=Priority.HIGH)]

    assert decide([job("h", workers=8, priority=Priority.HIGH)], running).pause == ()


def test_only_jobs_on_nodes_that_the_other_can_use_are_paused_for_it():
    running = [
        runs_on("A100", "l1a", priority=Priority.LOW, ran_s=9000.0),
        runs_on("H100", "l2h", priority=Priority.LOW, ran_s=601.0),
    ]
    high = on("A100", "h", priority=Priority.HIGH)

    for beside in (running, running[:1]):  # the H100s are taken, or free and of no use to it
        decided = decide([high], beside, nodes=KINDS)
        assert ([each.job_id for each in decided.pause], kinds(decided)) == (["l1a"], {"h": WaitKind.PREEMPTS})
    only_h100 = [replace(running[0], priority=Priority.HIGH), running[1]]
    assert decide([high], only_h100, nodes=KINDS).pause == ()


def test_nobody_is_paused_where_the_memory_would_come_free_in_pieces():
    nodes = [Node(cpus=4, memory_gb=64)] * 3
    running = [
        runs(name, size=Size(cpus=1.0, workers=1, memory_gb=40.0), priority=priority)
        for name, priority in (("r", Priority.LOW), ("s", Priority.HIGH), ("t", Priority.HIGH))
    ]
    high = job("h", workers=2, priority=Priority.HIGH)

    def paused(memory_gb):
        asks = replace(high, shape=high.shape._replace(memory_gb=memory_gb))
        return [each.job_id for each in decide([asks], running, nodes=nodes).pause]

    assert paused(50.0) == []  # 112 GB would be free, and room for one of its workers
    assert paused(30.0) == ["r"]


def test_room_that_is_about_to_come_is_no_room_of_another_kind():
    leaving = runs_on("H100", "r", priority=Priority.LOW, may_pause=False, is_leaving=True)
    taken = runs_on("A100", "s", priority=Priority.LOW)

    decided = decide([on("A100", "h", priority=Priority.HIGH)], [leaving, taken], nodes=KINDS)
    assert [each.job_id for each in decided.pause] == ["s"]

    again = decide(
        [on("A100", "h", priority=Priority.HIGH)], [replace(taken, may_pause=False, is_leaving=True)], nodes=KINDS
    )
    assert (again.pause, kinds(again)) == ((), {"h": WaitKind.PREEMPTS})


def test_nobody_takes_the_free_pieces_of_a_kind_for_which_a_job_is_paused():
    running = [runs_on("A100", "l", workers=4, priority=Priority.LOW), runs_on("H100", "s", workers=4)]
    waiting = [on("A100", "h", priority=Priority.HIGH), on("A100", "more", workers=2), on("H100", "t", workers=4)]

    decided = decide(waiting, running, nodes=KINDS)

    assert [each.job_id for each in decided.pause] == ["l"]
    assert started(decided) == ["t"] and kinds(decided)["more"] is WaitKind.ROOM


def test_while_the_room_comes_nobody_else_is_paused_and_nobody_takes_it():
    leaving = runs("r", workers=4, priority=Priority.LOW, may_pause=False, is_leaving=True)
    other = runs("s", workers=4, priority=Priority.LOW)

    decided = decide([job("h", workers=4, priority=Priority.HIGH), job("n", priority=Priority.LOW)], [leaving, other])

    assert (decided.pause, started(decided)) == ((), [])
    assert kinds(decided) == {"h": WaitKind.PREEMPTS, "n": WaitKind.ROOM}


def test_age_alone_pauses_nobody():
    old = job("old", workers=8, priority=Priority.LOW, waited_s=60 * HOUR_S)

    assert decide([old], [runs("r", workers=8)]).pause == ()


def made_way(by="h", **fields):
    """A low job that ran for long, was paused for another, and is before that one by its age."""
    values = {"workers": 8, "attempt": 1, "priority": Priority.LOW, "waited_s": 13 * HOUR_S, "project": "blue"}
    return job("a", preempted_by=by, **(values | fields))


@pytest.mark.parametrize("project", ["red", "blue"])
@pytest.mark.parametrize("workers", [2, 8])
def test_a_job_that_was_paused_for_another_starts_behind_it(project, workers):
    other, recent = job("h", workers=workers, project=project), {"red": Size(cpus=4.0)}
    assert places(decide([made_way(by=None), other], recent=recent)) == ["a", "h"]

    decided = decide([made_way(), other], recent=recent)

    assert (places(decided), started(decided), decided.pause) == (["h", "a"], ["h"], ())


def test_a_clock_that_was_set_back_leaves_a_job_behind_the_one_that_it_was_paused_for():
    decided = decide([made_way(project="red"), job("h", workers=8, not_before=NOW + HOUR_S)])

    assert (places(decided), started(decided)) == (["h", "a"], ["h"])


def test_a_job_that_was_paused_for_another_leaves_it_the_room_that_others_are_about_to_give_back():
    leaving = runs("r", workers=4, priority=Priority.LOW, may_pause=False, is_leaving=True)

    decided = decide([made_way(workers=4), job("h", workers=8)], [leaving])

    assert (started(decided), kinds(decided)["h"]) == ([], WaitKind.PREEMPTS)


@pytest.mark.parametrize(
    "fields",
    [
        {"job_id": "of-one-that-is-gone"},
        {"not_before": NOW + 1},
        {"shape": Shape(9, 1, 1.0, 0.0, 1, 1)},
        {"owner": "full"},
        {"priority": Priority.LOW},
    ],
)
def test_a_job_that_was_paused_goes_on_where_the_other_has_not_only_room_in_its_way(fields):
    quotas = {(QuotaKind.OWNER, "full"): QuotaLimits(workers=0), (QuotaKind.PROJECT, "red"): QuotaLimits(workers=8)}
    other = replace(job("h"), **fields)

    decided = decide([made_way(project="red"), other], quotas=quotas)

    assert (places(decided)[0], started(decided)) == ("a", ["a"])


def test_of_jobs_that_were_paused_for_one_another_the_highest_starts_first():
    waiting = [
        made_way(by="b"),
        job("b", workers=8, attempt=1, waited_s=20 * HOUR_S, preempted_by="c"),
        job("c", workers=8, priority=Priority.HIGH),
    ]

    assert places(decide(waiting)) == ["c", "b", "a"]
    raised = [replace(waiting[0], priority=Priority.URGENT, preempted_by="c"), replace(waiting[2], preempted_by="a")]
    assert places(decide(raised)) == ["a", "c"]


# -- quotas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "limit"),
    [(QuotaLimits(workers=3), "workers"), (QuotaLimits(running=1), "running"), (QuotaLimits(gpus=2.5), "gpus")],
)
@pytest.mark.parametrize("kind", QuotaKind)
def test_a_full_quota_holds_its_own_jobs_back_and_no_others(kind, limits, limit):
    nodes = [Node(cpus=8, gpus=8)]
    name = {QuotaKind.OWNER: "anna", QuotaKind.PROJECT: "red"}[kind]
    waiting = [job(each, workers=2, gpus=1.0) for each in "ab"] + [job("c", workers=2, owner="bert", project="blue")]

    decided = decide(waiting, nodes=nodes, quotas={(kind, name): limits})

    assert sorted(started(decided)) == ["a", "c"]
    (held,) = [place for place in decided.places if place.kind is WaitKind.QUOTA]
    assert (held.job.job_id, held.quota, held.limit) == ("b", (kind, name), limit)


def test_a_quota_is_kept_for_a_large_job_of_its_owner():
    quotas = {(QuotaKind.OWNER, "anna"): QuotaLimits(workers=4)}
    running = [runs("r", owner="anna", workers=2)]

    decided = decide([job("a", workers=4), job("b")], running, quotas=quotas)

    assert (started(decided), decided.places[1].behind.job_id) == ([], "a")


def test_a_job_that_waits_for_room_keeps_its_quota_as_well():
    quotas = {(QuotaKind.OWNER, "anna"): QuotaLimits(workers=6)}
    running = [runs("r", workers=4, ends_by=NOW + 1000.0)]

    decided = decide([job("a", workers=6), job("b"), job("c", owner="carl")], running, quotas=quotas)

    assert started(decided) == ["c"]
    assert kinds(decided) == {"a": WaitKind.ROOM, "b": WaitKind.QUOTA, "c": WaitKind.STARTS}
    assert decided.places[1].behind.job_id == "a"


def test_a_job_that_ends_in_time_uses_the_quota_of_one_that_waits_for_room():
    quotas = {(QuotaKind.OWNER, "anna"): QuotaLimits(workers=8)}
    running = [runs("r", workers=4, ends_by=NOW + 10 * HOUR_S)]
    waiting = [job("a", workers=8), job("b"), job("c", seconds=2 * HOUR_S), job("d", workers=2, seconds=300.0)]

    decided = decide(waiting, running, quotas=quotas)

    assert started(decided) == ["d"]
    assert kinds(decided) == {"a": WaitKind.ROOM, "b": WaitKind.QUOTA, "c": WaitKind.QUOTA, "d": WaitKind.STARTS}
    assert {place.behind.job_id for place in decided.places if place.behind} == {"a"}


@pytest.mark.parametrize("others", [[runs("r", workers=4, ends_by=NOW + 10 * HOUR_S)], []], ids=["no_room", "room"])
@pytest.mark.parametrize("kind", QuotaKind)
def test_a_job_keeps_its_room_while_a_short_one_that_passed_it_fills_its_quota(kind, others):
    quotas = {(kind, {QuotaKind.OWNER: "anna", QuotaKind.PROJECT: "red"}[kind]): QuotaLimits(workers=8)}
    waiting = [job("a", workers=8, priority=Priority.HIGH), job("c", workers=2, owner="carl", project="green")]

    def started_beside(name, **fields):
        passed = runs(name, workers=2, owner="anna", project="red", **fields)
        return started(decide(waiting, [*others, passed], quotas=quotas))

    assert started_beside("b", ends_by=NOW + 300.0) == []
    assert started_beside("b", ends_by=NOW + 2 * HOUR_S) == started_beside("b") == ["c"]  # room is not kept for long
    assert started_beside("b", ends_by=NOW - 2 * HOUR_S) == ["c"]
    assert started_beside("Z", ends_by=NOW + 300.0, priority=Priority.HIGH) == ["c"]  # an older job passed none
    assert started_beside("b", ends_by=NOW + 300.0, priority=Priority.URGENT) == ["c"]
    waiting[1] = replace(waiting[1], seconds=100.0)
    assert started_beside("b", ends_by=NOW + 300.0) == ["c"]


def test_a_sweep_uses_the_quota_of_one_that_waits_for_room_only_if_all_of_its_rounds_end_soon():
    quotas = {(QuotaKind.OWNER, "anna"): QuotaLimits(workers=8)}
    running = [runs("r", workers=7, ends_by=NOW + 10 * HOUR_S)]

    for seconds, begins in ((1000.0, ["b"]), (2000.0, [])):
        waiting = [job("a", workers=8), job("b", trials=2, seconds=seconds)]
        assert started(decide(waiting, running, quotas=quotas)) == begins


def test_no_more_jobs_are_paused_than_the_quota_lets_others_run_in_their_place():
    quotas = {(QuotaKind.OWNER, "anna"): QuotaLimits(running=1)}
    running = [runs(name, workers=4, priority=Priority.LOW) for name in "rs"]

    decided = decide([job(name, workers=4, priority=Priority.URGENT) for name in "ab"], running, quotas=quotas)

    assert [by.job_id for _, by in decided.pause] == ["a"]
    assert kinds(decided) == {"a": WaitKind.PREEMPTS, "b": WaitKind.QUOTA}


def test_everyones_quota_is_that_of_whoever_has_none():
    quotas = {(QuotaKind.OWNER, "*"): QuotaLimits(running=1), (QuotaKind.OWNER, "anna"): QuotaLimits()}
    waiting = [job(f"{owner}{n}", owner=owner) for owner in ("anna", "bert") for n in range(3)]

    assert sorted(started(decide(waiting, quotas=quotas))) == ["anna0", "anna1", "anna2", "bert0"]


@pytest.mark.parametrize(
    ("trials", "most", "at_a_time"), [(3, 2, 2), (6, 5, 3), (6, 6, 6), (7, 3, 3), (9, 4, 3), (3, 1, 1)]
)
def test_training_runs_go_in_even_rounds_of_as_many_as_the_cluster_and_the_quota_hold(trials, most, at_a_time):
    quotas = {(QuotaKind.PROJECT, "red"): QuotaLimits(workers=2 * most)}
    by_quota = decide([job("a", workers=2, trials=trials)], nodes=[Node(cpus=64)], quotas=quotas).start
    by_cluster = decide([job("a", workers=2, trials=trials)], nodes=[Node(cpus=2 * most)]).start

    for (start,) in (by_quota, by_cluster):
        assert (start.size.workers, start.trials) == (2 * at_a_time, at_a_time)


@pytest.mark.parametrize("at_once", [None, 32])
def test_a_job_of_many_trials_begins_with_fewer_at_a_time_in_the_room_that_is_free(at_once):
    nodes, waiting = [Node(cpus=16)] * 4, [job("a", workers=2, trials=32), job("b", workers=2)]
    waiting[0] = replace(waiting[0], shape=waiting[0].shape._replace(at_once=at_once))

    decided = decide(waiting, [runs("r", workers=2)], nodes=nodes)

    # 31 of 32 arms would need two rounds as well, so that half of the room goes to others.
    expected = [(31, 62)] if at_once else [(16, 32), (1, 2)]
    assert [(start.trials, start.size.workers) for start in decided.start] == expected


def test_a_job_of_many_trials_begins_with_as_many_as_its_quota_has_left():
    quotas = {(QuotaKind.OWNER, "anna"): QuotaLimits(workers=6)}

    (start,) = decide([job("a", trials=6)], [runs("r", owner="anna", workers=3)], quotas=quotas).start

    assert (start.trials, start.size.workers) == (3, 3)


def test_a_job_of_many_trials_waits_for_all_of_the_room_that_is_about_to_come():
    leaving = runs("r", workers=6, may_pause=False, is_leaving=True)
    low = runs("s", workers=6, priority=Priority.LOW)
    many = job("a", trials=8)

    assert kinds(decide([many], [leaving])) == {"a": WaitKind.PREEMPTS}
    assert [pause.job_id for pause in decide([many], [low]).pause] == ["s"]


def test_a_job_of_many_trials_leaves_the_room_that_is_reserved_for_an_earlier_job():
    running = [runs("r", workers=4, ends_by=NOW + 1000.0)]

    decided = decide([job("a", workers=6), job("b", trials=4)], running)

    assert [(start.job.job_id, start.trials) for start in decided.start] == [("b", 2)]


def test_what_a_quota_never_lets_start_is_told_with_the_field():
    quotas = {(QuotaKind.OWNER, "anna"): QuotaLimits(workers=4)}

    (problem,) = quota_conflicts(job("a", workers=5).shape, quotas, owner="anna", project="red")

    assert (problem.pointer, problem.value) == ("/workers/count", 5)
    assert "allowed: 0 to 4, the quota of owner anna" in problem.message


@pytest.mark.parametrize("stuck", [{"workers": 9}, {"not_before": NOW + 1}])
def test_a_job_that_cannot_start_now_holds_up_nobody(stuck):
    decided = decide([job("a", **stuck), job("b", workers=8)])

    assert started(decided) == ["b"]
    assert kinds(decided)["a"] in (WaitKind.NEVER, WaitKind.BACK_OFF)


@pytest.mark.parametrize(("ahead_s", "starts"), [(1.0, False), (60.0, False), (HOUR_S, True)])
def test_a_clock_that_was_set_back_holds_up_no_job_after_lost_attempts(ahead_s, starts):
    decided = decide([job("a", attempt=2, not_before=NOW + ahead_s)])

    assert started(decided) == (["a"] if starts else [])
    assert kinds(decided)["a"] is (WaitKind.STARTS if starts else WaitKind.BACK_OFF)


def test_the_order_in_which_running_jobs_are_told_decides_nothing():
    running = [
        runs(name, project=project, size=Size(cpus, 0.0, 1), ran_s=0.0)
        for name, project, cpus in [("a", "azure", 0.1), ("b", "azure", 0.2), ("c", "azure", 0.3), ("d", "red", 0.6)]
    ]
    waiting = [job("e", project="azure"), job("f", project="red")]
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1

    assert places(decide(waiting, running)) == places(decide(waiting, running[::-1]))


# -- whatever waits and runs -------------------------------------------------------------------------------

NAMES = st.sampled_from(["anna", "bert", "carl"])
PROJECTS = st.sampled_from(["red", "blue"])
LIMITS = st.builds(
    QuotaLimits,
    workers=st.none() | st.integers(0, 8),
    gpus=st.none() | st.sampled_from([0.0, 1.0, 2.5]),
    running=st.none() | st.integers(0, 4),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
)
QUOTAS = st.dictionaries(
    st.tuples(st.just(QuotaKind.OWNER), NAMES | st.just("*")) | st.tuples(st.just(QuotaKind.PROJECT), PROJECTS), LIMITS
)
SHAPES = st.builds(
    Shape, st.integers(1, 6), st.just(1), st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from([0.0, 0.25, 1.0]),
    st.integers(1, 2), st.integers(1, 3), at_once=st.none() | st.integers(1, 3), least=st.integers(1, 6),
    memory_gb=st.sampled_from([0.0, 4.0, 10.0, 20.0]), accelerator=st.sampled_from(["", "", "A100", "H100"]),
).map(lambda shape: shape._replace(least=min(shape.least, shape.num_workers)))  # fmt: skip
WAITING = st.lists(
    st.builds(
        Waiting,
        job_id=st.integers(0, 999).map("w{:03}".format),
        owner=NAMES,
        project=PROJECTS,
        priority=st.sampled_from(Priority),
        shape=SHAPES,
        queued_at=st.floats(NOW - 100 * HOUR_S, NOW),
        not_before=st.sampled_from([0.0, NOW + 1]),
        attempt=st.integers(0, 1),
        seconds=st.none() | st.floats(1.0, 20_000.0),
    ),
    max_size=12,
    unique_by=lambda each: each.job_id,
)
RUNNING = st.lists(
    st.builds(
        Running,
        job_id=st.sampled_from(["r{:03}", "x{:03}"]).flatmap(lambda name: st.integers(0, 999).map(name.format)),
        owner=NAMES,
        project=PROJECTS,
        priority=st.sampled_from(Priority),
        size=SHAPES.map(lambda shape: shape.one),
        began_at=st.floats(NOW - 100 * HOUR_S, NOW),
        ends_by=st.just(math.inf) | st.floats(NOW - HOUR_S, NOW + 10 * HOUR_S),
        may_pause=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda each: each.job_id,
)


MIXED = [
    Node(cpus=4, gpus=2, memory_gb=32, accelerator="A100"),
    Node(cpus=4, gpus=2, memory_gb=16, accelerator="H100"),
    Node(cpus=4, memory_gb=32, accelerator=""),
]


@settings(max_examples=150, deadline=None)
@given(WAITING, RUNNING, QUOTAS, st.randoms(), st.permutations(MIXED))
def test_no_decision_is_against_the_rules(waiting, running, quotas, random, nodes):
    decided = decide(waiting, running, nodes=nodes, quotas=quotas)
    shuffled = random.sample(waiting, len(waiting))

    assert decide(shuffled, running[::-1], nodes=nodes, quotas=quotas) == decided  # the same, in whatever order
    assert sorted(places(decided)) == sorted(each.job_id for each in waiting)
    assert [place.number for place in decided.places] == [*range(1, len(waiting) + 1)]

    room = total(nodes) - sum((each.size for each in running), Size())
    taken = sum((start.size for start in decided.start), Size())
    if decided.start:
        assert taken.fits(room)
    require_nodes(decided, running, nodes)
    for start in decided.start:
        assert start.job.not_before <= NOW
    for (kind, name), limits in quotas.items():
        require_quota(decided, running, quotas, kind, name, limits)

    by_name = {each.job_id: each for each in running}
    for victim, by in decided.pause:
        assert by_name[victim].priority.rank < by.priority.rank
        assert by_name[victim].may_pause and NOW - by_name[victim].began_at >= RULES.min_run_s
    assert len({victim for victim, _ in decided.pause}) == len(decided.pause)
    require_no_return(decided, waiting, running, nodes=nodes, quotas=quotas)

    for place in decided.places:
        if place.kind is WaitKind.BEHIND:
            assert kinds(decided)[place.behind.job_id] in (WaitKind.ROOM, WaitKind.QUOTA)


def require_no_return(decided, waiting, running, **of_cluster):
    """Once they have paused, jobs come behind those that they were paused for, if these wait for room alone."""
    paused, begun = dict(decided.pause), {start.job.job_id: start for start in decided.start}
    later = [each for each in waiting if each.job_id not in begun]
    later += [has_paused(each, paused[each.job_id]) for each in running if each.job_id in paused]
    runs_on = [each for each in running if each.job_id not in paused]
    runs_on += [runs(each.job.job_id, size=each.size, owner=each.job.owner, ran_s=0) for each in begun.values()]

    again = decide(later, runs_on, now=NOW + 2, **of_cluster)

    order, held = places(again), (WaitKind.QUOTA, WaitKind.BACK_OFF, WaitKind.NEVER)
    for victim, by in decided.pause:
        assert kinds(again)[by.job_id] in held or order.index(by.job_id) < order.index(victim)
    if len(set(paused.values())) == 1 and not begun:
        (by,) = set(paused.values())
        alone = kinds(decide([by], runs_on, now=NOW + 2, **of_cluster))[by.job_id]
        assert alone in (WaitKind.STARTS, *held), "they were paused in vain"


def require_nodes(decided, running, nodes):
    """Jobs that need certain nodes, by kind or memory, have room on these beside all others that need them."""

    def need(sizes, kind, more_than_gb):
        return [
            each
            for each in sizes
            if kind in ("", each.accelerator) and each.memory_gb > more_than_gb * each.workers and each.workers
        ]

    sizes = [each.size for each in running]
    for kind, more_than_gb in (("A100", -1), ("H100", -1), ("", 16), ("A100", 16)):
        own = [node for node in nodes if kind in ("", node.accelerator) and node.memory_gb > more_than_gb]
        there = sum(need(sizes, kind, more_than_gb), Size())
        new = need([start.size for start in decided.start], kind, more_than_gb)
        if new and there.fits(total(own)):
            assert sum(new, there).fits(total(own))


def has_paused(each, by):
    count = each.size.workers
    shape = Shape(count, 1, each.size.cpus / count, each.size.gpus / count, 1, 1, least=count)
    known = {name: getattr(each, name) for name in ("job_id", "owner", "project", "priority")}
    return Waiting(shape=shape, queued_at=NOW - 30 * HOUR_S, attempt=1, preempted_by=by.job_id, **known)


def require_quota(decided, running, quotas, kind, name, limits):
    """Nobody starts over a quota; what ran over it before may go on."""
    own = [key for key, _ in quotas.items() if key[0] is kind and key[1] != "*"]

    def counts(each):
        value = getattr(each, kind.value)
        return value == name or (name == "*" and (kind, value) not in own)

    for value in {getattr(each.job, kind.value) for each in decided.start if counts(each.job)}:
        mine = [each for each in running if getattr(each, kind.value) == value]
        new = [each for each in decided.start if getattr(each.job, kind.value) == value]
        sizes = sum((each.size for each in [*mine, *new]), Size())
        assert limits.workers is None or sizes.workers <= limits.workers
        assert limits.gpus is None or sizes.gpus <= limits.gpus + 1e-6
        assert limits.running is None or len(mine) + len(new) <= limits.running
