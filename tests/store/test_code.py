"""Code that users upload, and the jobs that name it, on either database."""

import pytest

from service.code_package import of_folder
from service.control import code
from service.control.access.rules import LOCAL
from service.errors import CodeInUse, InvalidJob, TooMuchCode
from tests.store.conftest import Group
from tests.support.patience import PATIENCE_S


@pytest.fixture
def digest(store, tmp_path):
    """The digest of code that the store has."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("def build(): ...")
    return store.code.add(of_folder(folder), by=LOCAL).digest


@pytest.mark.parametrize("is_job_first", [True, False], ids=["job first", "deletion first"])
def test_of_a_job_and_the_deletion_of_its_code_in_one_transaction_the_later_one_is_refused(
    store, make_spec, pool, digest, is_job_first
):
    group = Group(store, pool)
    spec = make_spec(workload={"factory": "train:build", "code": digest})
    calls = [lambda: store.add_job(spec), lambda: store.code.remove(digest, by=LOCAL)]
    first, second = (group.call(call) for call in (calls if is_job_first else calls[::-1]))
    bystander = group.call(lambda: store.add_job(make_spec()))

    group.release()

    assert first.exception(PATIENCE_S) is None and bystander.exception(PATIENCE_S) is None
    assert type(second.exception(PATIENCE_S)) is (CodeInUse if is_job_first else InvalidJob)
    assert len(store.jobs().jobs) == 1 + is_job_first
    assert len(store.code.list(by=LOCAL).packages) == is_job_first


@pytest.mark.parametrize("is_job_first", [True, False], ids=["job first", "upload first"])
def test_of_a_job_and_an_upload_that_takes_the_place_of_its_code_in_one_transaction_the_later_one_is_refused(
    store, make_spec, pool, digest, tmp_path, monkeypatch, is_job_first
):
    store.code._max_packages = 1
    monkeypatch.setattr(code, "_STAYS_S", 0.0)
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("def another(): ...")
    group = Group(store, pool)
    spec = make_spec(workload={"factory": "train:build", "code": digest})
    calls = [lambda: store.add_job(spec), lambda: store.code.add(of_folder(other), by=LOCAL)]
    first, second = (group.call(call) for call in (calls if is_job_first else calls[::-1]))

    group.release()

    assert first.exception(PATIENCE_S) is None
    assert type(second.exception(PATIENCE_S)) is (TooMuchCode if is_job_first else InvalidJob)
    assert [each.digest == digest for each in store.code.list(by=LOCAL).packages] == [is_job_first]
