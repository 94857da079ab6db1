import json

import pytest

from slm_lab.errors import SpecError
from slm_lab.spec.job import Job, parse_job, read_jobs


@pytest.mark.parametrize(
    ("mode", "verb", "target"),
    [
        ("train", "train", None),
        ("dev", "dev", None),
        ("train@latest", "train", "latest"),
        ("enjoy@data/run/t0/s1", "enjoy", "data/run/t0/s1"),
    ],
)
def test_a_mode_says_what_to_do_and_with_which_run(mode, verb, target):
    assert parse_job("a.json", "demo", mode) == Job("a.json", "demo", verb, target)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("trian", "no mode 'trian'; did you mean 'train'?"),
        ("Train", "no mode 'Train'; did you mean 'train'?"),
        ("enjoi@latest", "no mode 'enjoi@latest'; did you mean 'enjoy'?"),
        ("enjoy", "'enjoy' of which run? enjoy@latest, or enjoy@data/RUN"),
        ("train@", "'train@' of which run? train@latest, or train@data/RUN"),
        ("dev@latest", "mode 'dev' starts a new run; it takes no '@'"),
        ("search@", "'search@' of which run? search@latest, or search@data/RUN"),
        ("serch", "no mode 'serch'; did you mean 'search'?"),
        ("", "no mode ''; modes: train, dev, search"),
    ],
)
def test_a_wrong_mode_names_the_nearest(mode, message):
    with pytest.raises(SpecError) as caught:
        parse_job("a.json", "demo", mode)
    assert str(caught.value).startswith(message)


def write(tmp_path, tree):
    file = tmp_path / "job.json"
    file.write_text(json.dumps(tree))
    return str(file)


def test_a_job_file_is_read_in_its_order(tmp_path):
    file = write(tmp_path, {"b.json": {"two": "train", "one": "dev"}, "a.json": {"three": "enjoy@latest"}})
    assert read_jobs(file) == [
        Job("b.json", "two", "train"),
        Job("b.json", "one", "dev"),
        Job("a.json", "three", "enjoy", "latest"),
    ]


def test_all_mistakes_of_a_job_file_are_told_together(tmp_path):
    with pytest.raises(SpecError) as caught:
        read_jobs(write(tmp_path, {"b.json": {"two": "trian", "one": 3, "three": "search@"}, "a.json": "train"}))
    assert len(caught.value.mistakes) == 4


@pytest.mark.parametrize(
    ("tree", "message"),
    [({}, "names no job"), ({"demo": {"agent": {}, "env": {}}}, "holds specs; add the name of one and a mode: demo")],
)
def test_a_file_without_jobs_is_refused(tmp_path, tree, message):
    with pytest.raises(SpecError, match=message):
        read_jobs(write(tmp_path, tree))
