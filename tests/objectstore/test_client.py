"""The client with two real servers, and over a line that breaks, is busy, or returns wrong bytes."""

import contextlib
import copy
import hashlib
import io
import multiprocessing
import os
import pickle
import string
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import botocore.exceptions
import botocore.session
import pytest
import torch
import urllib3.exceptions
from botocore import loaders
from programs import imported, wait_for
from proxy import EXPIRED, SLOW_DOWN

from helpers.cortx import make_client
from smallfiles import storage
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError, SourceError, StorageError, UsageError
from smallfiles.objectstore import access
from smallfiles.objectstore.access import Keys, StoreUrl
from smallfiles.objectstore.client import ConditionError, NoObjectError, Store

DATA = bytes(range(251)) * 21_011  # 5.3 MB whose parts all differ


def md5(data):
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def store(server, place):
    return server.store(f"{place}/set")


def test_what_is_put_is_read_back_by_bytes_and_by_range(store):
    etag = store.put("a b+é.bin", DATA)
    entry = store.head("a b+é.bin")
    assert (entry.bytes, entry.etag) == (len(DATA), etag)
    assert store.get("a b+é.bin") == DATA
    for start, stop in ((0, 1), (1_000_003, 3_000_000), (len(DATA) - 1, len(DATA)), (7, 7)):
        assert store.get_range("a b+é.bin", start, stop) == DATA[start:stop]
    store.delete("a b+é.bin")
    with pytest.raises(NoObjectError, match="is not there"):
        store.head("a b+é.bin")


def test_an_object_of_several_parts_is_one_object_and_an_upload_that_was_left_is_found(store):
    parts = [DATA, DATA[::-1], b"end"]
    upload = store.begin("big")
    sent = [store.put_part("big", upload, number, part) for number, part in enumerate(parts[:2], 1)]
    assert sent == [md5(part) for part in parts[:2]]
    assert store.begun("big") == (upload, dict(enumerate(sent, 1)))
    assert store.begun("bi")[0] == "" and list(store.entries()) == []
    sent.append(store.put_part("big", upload, 3, parts[2]))
    store.complete("big", upload, sent)
    assert store.get("big") == b"".join(parts)
    assert store.begun("big") == ("", {})


def test_all_keys_of_several_pages_are_listed_and_none_of_a_neighbour(server):
    whole, count = server.store("s3://first"), 2500 if server.name == "rclone" else 1100

    def put(first):
        for n in range(first, count, 8):
            whole.put(f"many/{n:04} +.bin", b"xxx")

    if server.name != "rclone":
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, range(8)))
    for name in ("many-old/x", "man"):
        whole.put(name, b"")
    entries = list(server.store("s3://first/many").entries())
    assert [entry.name for entry in entries] == [f"{n:04} +.bin" for n in range(count)]
    assert {(entry.bytes, entry.etag) for entry in entries} == {(3, md5(b"xxx"))}


def test_reading_continues_inside_the_object_after_the_line_broke(far, line):
    far.put("a", DATA)
    line.cut_after, line.cuts = 1_200_000, 3
    assert far.get_range("a", 1000, len(DATA)) == DATA[1000:]
    starts = [1000, *(1000 + n * 1_048_576 for n in (1, 2, 3))]  # 1 MiB of each answer was whole
    assert len(line.asked("GET .*/a$")) == len(starts)


def test_a_line_that_always_breaks_at_once_ends_in_an_error(far, line):
    far.put("a", DATA)
    line.cut_after, line.cuts = 10, 1000
    with storage.timeout(0.3), pytest.raises(StorageError, match=r"did not answer for .*\(.*did not answer"):
        far.get_range("a", 0, len(DATA))
    assert len(line.asked("GET")) > 3


@pytest.mark.parametrize("fault", [SLOW_DOWN, (500, "InternalError"), (429, "x")])
def test_a_request_to_a_busy_server_is_repeated_for_a_limited_time(far, line, fault):
    far.put("a", b"abc")
    line.refuse = [fault] * 9
    assert far.get_range("a", 0, 3) == b"abc"
    line.refuse = [fault] * 1000
    with storage.timeout(0.3), pytest.raises(StorageError, match=f"answered {fault[1]} .*Run it again"):
        far.put("b", b"abc")
    assert 0 < len(line.refuse) < 1000 - 3


def test_an_answer_that_is_too_short_is_completed(far, line):
    far.put("a", DATA)
    line.shorter_by, line.shorts = 100, 2
    assert far.get_range("a", 0, len(DATA)) == DATA
    line.shorts = 1000
    with storage.timeout(0.1), pytest.raises(StorageError, match="did not answer"):
        far.get_range("a", 0, 50)


def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(far, line, servers):
    far.put("a", DATA)
    line.cut_after, line.cuts = 2_000_000, 1
    line.before = lambda method, target: (
        line.asked("GET") and len(line.asked("GET")) == 2 and direct.put("a", DATA[::-1])
    )
    direct = servers("rclone").store(str(far.place))
    with pytest.raises(ConditionError, match="was replaced while it was read"):
        far.get_range("a", 0, len(DATA))
    line.seen.clear()
    far.put("a", DATA)
    line.cuts = 1  # and a server that ignores conditions
    line.before = lambda method, target: len(line.asked("GET")) == 2 and setattr(line, "etag", '"another"')
    with pytest.raises(ConditionError):
        far.get_range("a", 0, len(DATA))


def test_keys_that_expired_are_read_again(far, line, servers, tmp_path, monkeypatch):
    """The file of keys is written anew while a job runs."""
    file, keys = tmp_path / "keys", servers("rclone").keys
    text = "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\naws_session_token = {}\n"
    file.write_text(text.format(keys.key_id, keys.secret, "old"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    store = Store(far.place, endpoint=line.url)
    store.put("a", DATA)
    line.refuse = [EXPIRED] * 3

    def rewrite(method, target):
        file.write_text(text.format(keys.key_id, keys.secret, len(line.seen)))

    line.before = rewrite
    assert store.get_range("a", 5, 500) == DATA[5:500]
    rewrite("GET", "")
    line.seen.clear()
    line.before = lambda method, target: wait_for(lambda: len(line.seen) >= 4)  # all with the old keys
    line.refuse = [EXPIRED] * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store.get, "aaaa")) == [DATA] * 4
    line.before = lambda method, target: None
    line.refuse = [EXPIRED] * 1000
    with pytest.raises(UsageError, match=r"keys have expired.*Get new ones"):
        store.get("a")
    assert len(line.refuse) >= 1000 - 3


LISTING = b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents>%s</Contents></ListBucketResult>"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        *(
            ((s, "x", {"Location": "http://elsewhere/"}), "redirects to another address")
            for s in (301, 302, 307)
        ),
        ((301, "PermanentRedirect", {"x-amz-bucket-region": "eu-x-1"}), "redirects to another address"),
        ((200, "", {}, LISTING % b"<Size>3</Size>"), "its answer is not one of S3"),
        ((200, "", {}, LISTING % b"<Key>a</Key><Size>abc</Size>"), "its answer is not one of S3"),
        ((200, "", {}, b"<html><body>Please log in</body></html>"), "its answer is not one of S3"),
    ],
)
def test_an_answer_that_is_not_one_of_s3_is_an_error_in_one_sentence(far, line, answer, sentence):
    line.refuse = [answer] * 1000
    with pytest.raises(SmallfilesError, match=f"{sentence}.*Check AWS_ENDPOINT_URL"):
        list(far.entries())
    assert len(line.seen) <= 3
    if answer[0] != 200:
        with pytest.raises(SmallfilesError, match=sentence):
            far.get_range("a", 0, 10)
        with pytest.raises(SmallfilesError):
            far.head("a")


SECRET = "qWzSECRETxYz"
SETTINGS = [
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"),
    *("AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE", "AWS_CA_BUNDLE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "HTTP_PROXY"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_MAX_ATTEMPTS"),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_of_the_environment_is_in_a_message(setting, monkeypatch, capfd):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if not setting.startswith("AWS_CONTAINER"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    for form in ("{}", "a\r\n{}", "é{}", "http://user:{}@127.0.0.1:1", "http://{}@["):
        monkeypatch.setenv(setting, form.format(SECRET))
        assert main(["ls", "s3://first/x"]) in (1, 2)
        with pytest.raises(SmallfilesError) as caught:
            Store(StoreUrl.parse("s3://first/x")).get("a")
        shown = "".join([*capfd.readouterr(), *traceback.format_exception(caught.value), repr(caught.value)])
        assert SECRET not in shown and "bug in" not in shown


def exceptions(of=(botocore.exceptions, urllib3.exceptions)):
    """Each exception that the client may raise, with the secret in all of its words."""
    for each in {value for module in of for value in vars(module).values() if isinstance(value, type)}:
        fields = {name for _, name, _, _ in string.Formatter().parse(getattr(each, "fmt", "")) if name}
        for more in [dict.fromkeys(fields, SECRET), {}]:
            for words in [(), (SECRET,), (SECRET, SECRET), (SECRET, SECRET, SECRET)]:
                with contextlib.suppress(Exception):
                    yield each(*words, **more)
    yield from (ValueError(SECRET), RecursionError(SECRET), KeyError(SECRET), OSError(5, SECRET))
    answer = {"Code": SECRET + "\n", "Message": SECRET}
    yield botocore.exceptions.ClientError(
        {"Error": answer, "ResponseMetadata": {"HTTPStatusCode": 400}}, SECRET
    )


def test_no_message_contains_words_of_an_exception_of_the_client(server, place, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    store, count = server.store(place, endpoint=f"http://user:{SECRET}@127.0.0.1:1"), 0
    for error in filter(lambda error: isinstance(error, Exception), exceptions()):

        def fail(*_, error=error, **__):
            raise error

        store.client.meta.events.register("before-call.s3", fail, unique_id="test")
        for ask in (lambda: store.get("a"), lambda: store.get_range("a", 0, 9), lambda: store.head("a")):
            with pytest.raises(SmallfilesError) as caught:
                ask()
            assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(store)
        store.client.meta.events.unregister("before-call.s3", unique_id="test")
        count += 1
    assert count > 60


def test_a_password_in_a_url_is_in_no_message(capsys):
    assert main(["ls", f"http://user:{SECRET}@host/x"]) == 2
    assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize("change", ["key", "secret"])
def test_wrong_keys_are_an_error_that_does_not_contain_them(server, place, change):
    key, secret = server.keys.key_id, server.keys.secret
    wrong = {"key": Keys("WRONGKEYID0123456789", secret), "secret": Keys(key, "x" * 40)}
    store = Store(StoreUrl.parse(place), endpoint=server.url, keys=wrong[change])
    with pytest.raises(UsageError, match="refused the keys") as caught:
        store.get("a")
    shown = f"{caught.value!r} {caught.value} {store!r} {wrong[change]!r} {vars(store)!r}"
    assert not any(word in shown for word in (wrong[change].secret, wrong[change].key_id))


def test_a_missing_bucket_object_or_server_is_an_error_in_one_sentence(server, place):
    with pytest.raises(SourceError, match="has no bucket"):
        server.store("s3://second/x").get("a")
    with pytest.raises(NoObjectError, match="is not there"):
        server.store(place).get("a")
    with pytest.raises(SourceError, match=r"Check AWS_ENDPOINT_URL and the network"):
        server.store(place, endpoint="http://127.0.0.1:1").get("a")


def test_a_client_looks_only_for_the_models_that_it_needs_and_threads_share_it(far, monkeypatch):
    far.put("a", DATA)
    far.close()
    access._models.cache_clear()
    looked, exists, made, session = [], loaders.JSONFileLoader.exists, [], botocore.session.Session
    monkeypatch.setattr(loaders.JSONFileLoader, "exists", lambda *at: looked.append(at) or exists(*at))
    monkeypatch.setattr(botocore.session, "Session", lambda: time.sleep(0.1) or made.append(1) or session())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(far.get, "aaaa")) == [DATA] * 4
    assert len(made) == 1 and 0 < len(looked) < 20


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_store_that_was_used_works_in_workers_and_takes_its_keys_along(server, place, method, monkeypatch):
    store = server.store(place)
    store.put("a", DATA)
    monkeypatch.setattr(loaders.JSONFileLoader, "load_file", None)  # a forked worker has what its parent read
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    with imported("smallfiles.objectstore.client", environment=dict(os.environ)):
        workers = [context.Process(target=_read, args=(store, answers)) for _ in range(2)]
        with access.CONNECTING:  # as if another thread connected at that moment
            _ = [worker.start() for worker in workers]
        assert [answers.get(timeout=60) for _ in workers] == [md5(DATA)] * 2
        _ = [worker.join() for worker in workers]
    assert store.get("a") == DATA


def _read(store, answers):
    answers.put(md5(store.get_range("a", 0, len(DATA))))


def saved(thing):
    torch.save(thing, buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize("keep", [pickle.dumps, saved])
def test_a_pickle_that_is_not_for_a_worker_holds_no_keys_and_a_copy_keeps_them(server, place, keep):
    store = server.store(place)
    store.put("a", b"b")
    shim = make_client(server.url, server.keys.key_id, server.keys.secret)
    for each in (store, shim, server.keys):
        kept = keep(each) + repr(each).encode()
        assert server.keys.secret.encode() not in kept and server.keys.key_id.encode() not in kept
    for copied in (copy.copy, copy.deepcopy):
        assert copied(store).get("a") == b"b"
        assert copied(shim).store(store.place.bucket, store.place.prefix).get("a") == b"b"
    assert pickle.loads(pickle.dumps(shim)).keys is None


@pytest.mark.parametrize(
    "url", ["s3:/b/x", "b/x", "s3://", "s3://b/../x", "s3://place//x", "s3://place/a/./b", "s3://Ü/x"]
)
def test_a_place_of_another_form_is_refused(url):
    with pytest.raises(UsageError, match="s3://BUCKET/PREFIX"):
        StoreUrl.parse(url)
