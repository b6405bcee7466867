# %% [markdown] id="top"
# # 09 · Stream shards from object storage
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** notebook 05 · **Data** 128 synthetic images
#
# An object store keeps *objects* in *buckets*, and programs read and write them over HTTP. It looks like a file system, but
# it behaves differently. Most stores do not have folders, and you cannot rename or extend an object. Each request also
# travels over a network, so a program waits for every answer, even for a tiny one.
#
# First you send such requests by hand. Then you learn how to send fewer requests, and how to send each request before your
# program needs the data.

# %% [markdown] id="questions"
# ## Questions
#
# - What does one request cost?
# - When is an upload complete, and how does a reader know?
# - How can I read one image without its whole shard?
# - How do I hide the latency of a network?
# - Is each sample read exactly once, even if a connection breaks?

# %% [markdown] id="objectives"
# ## After this you can
#
# - request a part of an object by hand, and with a reader,
# - estimate how long an epoch waits, from the latency and the number of requests,
# - push shards in parallel, and recognise an incomplete upload,
# - choose the number of requests in flight,
# - distinguish a reader that resumes from a reader that loses samples silently.

# %% [markdown] id="setup"
# ## Set up
#
# The main findings are counts of requests, waits and bytes, so they are the same on a busy machine. Only the measured times
# and speeds change.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("09")

# %% [markdown]
# The *folded* cell starts a real S3 server on this machine, stores 1,500 tiny photos in it, and puts the access keys of the
# server into environment variables.
#
# All requests pass through `line`, which plays the role of the network. It can delay requests and break connections, and it
# counts requests and bytes.

# %% jupyter={"source_hidden": true}
import os
import tempfile
from pathlib import Path

from helpers.experiments.nb09 import Line
from smallfiles import objectstore

bucket = Path(tempfile.mkdtemp(dir=setup.scratch)) / "course"
(bucket / "photos").mkdir(parents=True)
for number in range(1_500):
    (bucket / "photos" / f"{number:05}.jpg").write_bytes(b"a photograph")
server = objectstore.Server(bucket.parent)  # folders in this folder are buckets
line = Line(server.port)
os.environ.pop("AWS_ENDPOINT_URL_S3", None)  # yours, if you have one, would win
os.environ.update(server.environment | {"AWS_ENDPOINT_URL": line.url, "AWS_SESSION_TOKEN": ""})
for name in ("no_proxy", "NO_PROXY"):  # a proxy of your site does not reach this machine
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
[*server.environment]  # names only: a key in a notebook stays in its history

# %% [markdown] id="recall"
# > **Recall** (07). Staging a data set takes 60 s, and it makes each epoch 20 s shorter. After how many epochs does it pay off?
# > When does staging never pay off?
#
# <details>
# <summary>Answer</summary>
#
# It pays off after 60 / 20 = 3 epochs. It never pays off if the storage already delivers samples faster than the GPUs train
# on them. Then a copy does not make any epoch shorter.
#
# </details>

# %% [markdown] id="ask" tags=["core"]
# ## 1 · Ask for an object
#
# `botocore` is Amazon's Python library for S3. With it, we store an object (a PUT request) and read it again (a GET
# request):

# %%
from botocore.config import Config
from botocore.session import Session

client = Session().create_client("s3", config=Config(signature_version="s3v4"))
client.put_object(Bucket="course", Key="hello.txt", Body=b"hello, object store")
client.get_object(Bucket="course", Key="hello.txt")["Body"].read()

# %% [markdown]
# Each call sends one HTTP request. To see what such a request contains, we now send one ourselves, with Python's standard
# library. The store refuses requests without a signature, so `botocore` still signs the address for us. The header `Range`
# asks for a part of the object:

# %% tags=["slide"]
from urllib.request import Request, urlopen


def get(key, first=0, end=None):
    """Request the bytes of an object from `first` to `end` (exclusive), and return the answer."""
    url = client.generate_presigned_url("get_object", Params={"Bucket": "course", "Key": key})
    wanted = f"bytes={first}-" if end is None else f"bytes={first}-{end - 1}"
    return urlopen(Request(url, headers={"Range": wanted}))


answer = get("hello.txt", 7, 13)
answer.headers["ETag"], answer.headers["Content-Range"], answer.read()

# %% [markdown]
# The answer contains only the six bytes that we asked for. `Content-Range` says where they are in the object, and how large
# the whole object is. The *ETag* is a fingerprint of the content, so it changes if somebody replaces the object.
#
# Before the first byte arrives, the request must travel to the store, and the answer must travel back. This delay is the
# *latency*. It is often some tens of milliseconds, even for a tiny object.
#
# > **Predict.** The latency is 20 ms, and then the bytes arrive at 90 MB/s. How large must an object be so that waiting for
# > its first byte takes less than a tenth of the total time?

# %%
guess = None  # your guess in bytes: for example 1_000_000

# %% tags=["slide"]
import matplotlib.pyplot as plt

latency_s, bandwidth = 0.02, 90e6  # change me: your store, and bytes/s of one large request
sizes = [10 ** (power / 2) for power in range(6, 19)]
waiting = [100 * latency_s / (latency_s + size / bandwidth) for size in sizes]

figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
axes.semilogx(sizes, waiting)
axes.axhline(10, color="grey", ls="--")
if guess is not None:
    axes.axvline(guess, color="#D55E00", ls="--", label="your guess")
    axes.legend()
axes.set_xticks([1e3, 1e5, 1e7, 1e9], ["1 kB", "100 kB", "10 MB", "1 GB"])
axes.set(xlabel="size of the object", ylabel="% of the time spent waiting", ylim=(0, 105))
short, long = waiting[4], waiting[10]
title = f"Of the time to read 100 kB, {short:.0f} % is waiting; for 100 MB, only {long:.0f} %"
axes.set_title(title)
show.figure(figure, alt=f"{title}. Computed for a latency of {1000 * latency_s:.0f} ms.")

# %% [markdown]
# The object must be larger than 16 MB. Waiting takes a tenth of the time if receiving the bytes takes the other nine
# tenths, which is 9 × 20 ms = 180 ms. At 90 MB/s, 16 MB arrive in 180 ms.
#
# For much smaller objects, nearly all of the time is waiting. If a program sends one request after the other, it gets at
# most 1 / 20 ms = 50 objects per second. With images of 100 kB, this is 5 MB/s, however fast the network is.
#
# The *folded* cell checks this with our server. It reads objects of six sizes, without added latency and with 20 ms.

# %% jupyter={"source_hidden": true}
from functools import partial

from smallfiles import measure

measured = [10**power for power in range(3, 9)]
for size in measured:
    client.put_object(Bucket="course", Key=f"sizes/{size}", Body=bytes(size))


def read_whole(size):
    return len(client.get_object(Bucket="course", Key=f"sizes/{size}")["Body"].read())


lines = {}
for added_s in (0, 0.02):
    line.set(latency_s=added_s)
    result = measure.compare(
        {f"{size}": partial(read_whole, size) for size in measured}, rounds=3, unit="bytes"
    )
    lines[f"{1000 * added_s:.0f} ms added"] = {size: result.rates_per_s(f"{size}") for size in measured}
line.set()
guide = "50 objects per second"
lines[guide] = {size: size / 0.02 for size in measured[:4]}
title = "With 20 ms of latency, small objects arrive at 50 per second at most"
axes = {"x": "size of the object (B)", "y": "throughput (B/s)", "log": "xy", "note": "one request at a time"}
figures.lines(lines, title, **axes, ideal=guide)

# %% [markdown]
# With 20 ms of latency, small objects stay below the grey line of 50 objects per second. Only large objects use the network
# well, because one wait fetches many bytes.
#
# There are two remedies. Store shards instead of images ([05](05_shard_a_dataset.ipynb)), and send several requests without
# waiting for the first answer (section 4).

# %% [markdown] id="push" tags=["core"]
# ## 2 · Push shards, then publish the manifest
#
# We pack the images into 16 shards. Each shard is a tar file of about 1 MB with 8 images. Each shard also has an *index*,
# which is a second file that stores the positions of the images. So there are 32 files, and each of them becomes an object.

# %%
from smallfiles.formats import tar
from smallfiles.objectstore import TransferConfig
from smallfiles.pack import PackConfig, pack

out = Path(tempfile.mkdtemp(dir=setup.scratch)) / "train.tars"
packed = pack(setup.source(), out, PackConfig(options=tar.Options(max_count=8), shuffle=0))
shards = sorted(path.name for path in packed.path.glob("*.tar"))

# %% [markdown]
# `push` uploads these files. A request is *in flight* from the moment when it is sent until its answer has arrived. We push
# twice, first with one request in flight and then with eight. The latency is 50 ms.

# %%
for workers in (1, 8):  # change me
    line.set(latency_s=0.05)
    goal, config = f"s3://course/push-{workers}", TransferConfig(workers)
    moved = objectstore.push(packed.path, goal, config=config)
    sent = line.count()["requests"]
    print(f"{workers} in flight: {moved.objects} objects, {sent} requests in {moved.seconds:.1f} s")

# %% [markdown]
# Both pushes send the same number of requests, but the second push is faster. Eight requests now wait at the same time, so
# together they wait 50 ms instead of 400 ms.
#
# The second push is not eight times as fast, because some requests must be sent alone. At the start, `push` asks which
# objects exist already. At the end, it lists what has arrived, and then it writes one more object.
#
# This last object is the *manifest object*, `smallfiles.json`. It names all other objects with their digests. Why is it
# written last? To find out, the *folded* cell starts a new push, and kills it when about half of the objects have arrived.
# The cell after it lists the objects, tries to open the data set, and then pushes again.
#
# Can a program see from the list of objects that the other half is missing?

# %% jupyter={"source_hidden": true}
import multiprocessing
import time

half = "s3://course/half"
there = objectstore.Store(objectstore.StoreUrl.parse(half))
slowly = {"config": TransferConfig(workers=2)}
upload = multiprocessing.get_context("fork").Process(
    target=objectstore.push, args=(packed.path, half), kwargs=slowly
)
upload.start()
while upload.is_alive() and sum(1 for _ in there.entries()) < 15:
    time.sleep(0.01)
upload.kill()
upload.join()

# %%
from smallfiles.errors import SmallfilesError

found = objectstore.ls(half)
print(f"{len(found.entries)} objects: {found.note}")
try:
    objectstore.open(half)
except SmallfilesError as error:
    show.say(f"The reader: *{error}*")
moved = objectstore.push(packed.path, half)
now = objectstore.ls(half).note or "complete"
print(f"pushed again: {moved.kept_bytes / moved.bytes:.0%} was there already; now it is {now}")

# %% [markdown]
# No. The store lists the objects that have arrived, and nothing in this list says that others are missing. The note after
# the number comes from our `ls`, which looked for the manifest object and did not find it. A program that trains on all
# objects in the list would train on half of the data, without an error.
#
# Our reader looks for the manifest object first, and refuses to open a data set without it. So `push` writes the manifest
# object last. Once it exists, all other objects exist, too. The second push sent only the objects that were missing.
#
# Listings have one more trap. **Your turn.** The folded cell at the top stored 1,500 photos, but the next cell lists only
# 1,000 of them. Change the marked line so that it lists all photos:

# %% tags=["slide"]
listed, names, more = client.list_objects_v2(Bucket="course", Prefix="photos/"), [], True
while more:
    names += [entry["Key"] for entry in listed["Contents"]]
    token = listed.get("NextContinuationToken")
    more = False  # change me: continue while there is a token
    if more:
        listed = client.list_objects_v2(Bucket="course", Prefix="photos/", ContinuationToken=token)
print(len(names), "names")

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `more = token is not None`
#
# </details>
#
# A store lists at most 1,000 names per request. If there are more names, the answer also contains a token. Send this token
# with the next request, and you get the next page of names.

# %% [markdown] id="one" tags=["core"]
# ## 3 · Read one image of a shard
#
# A shard is one object with many images. Sometimes you need only one of them, for example an image that your model
# misclassified. The index of the shard, an Arrow file ([03](03_pack_arrow.ipynb)), says where this image is.
#
# We push the data set to `s3://course/train`. Then we request the index of shard 3, and look up where image 5 of this shard
# is. Both numbers count from zero.

# %%
import pyarrow as pa

objectstore.push(packed.path, "s3://course/train")
line.set()
index = pa.ipc.open_file(get(f"train/{shards[3]}.index.arrow").read()).read_all()
row = index.slice(5, 1).to_pylist()[0]
print({name: row[name] for name in ("key", "offset", "size")})

# %% [markdown]
# > **Predict.** The shard has about 1 MB. How many bytes travel in all, for the index and for this image?

# %%
guess = None  # your guess in bytes: for example 1_000_000

# %% tags=["slide"]
image = get(f"train/{shards[3]}", row["offset"], row["offset"] + row["size"]).read()
count = line.count()
print(f"{len(image):,} bytes, beginning with {image[:4].hex(' ')}, which means JPEG")
print(
    f"{count['requests']} requests; {count['bytes']:,} bytes travelled",
    "" if guess is None else f"(your guess: {guess:,})",
)

# %% [markdown]
# Two requests are enough, and only about a quarter of the shard travels. Nearly all of these bytes are the image itself.
#
# The reader of the toolbox fetches all indexes when it opens the data set. After that, it needs only one request for an
# image:

# %%
url = "s3://course/train"
reader = objectstore.open(url)
line.set()
print(reader.read(29) == image, "- image 29 is number 5 of shard 3")
print(line.count())

# %% [markdown]
# There was only one request, but this time the whole shard travelled. The reader always fetches whole blocks of 4 MiB, so
# that it can compare each block with its digest, and our shards are smaller than a block. From a large shard, it fetches
# only the blocks that contain the image.
#
# Should a training program read all of its images one by one? The next cell reads an epoch twice, first shard by shard and
# then image by image, and counts the requests.

# %%
line.set()
for shard in shards:
    client.get_object(Bucket="course", Key=f"train/{shard}")["Body"].read()
by_shard = line.count()["requests"]

line.set()
for shard in shards:
    table = pa.ipc.open_file(get(f"train/{shard}.index.arrow").read()).read_all()
    for begin, size in zip(table["offset"].to_pylist(), table["size"].to_pylist()):
        get(f"train/{shard}", begin, begin + size).read()
by_range = line.count()["requests"]
print(f"{packed.samples} images: {by_shard} requests for whole shards, {by_range} image by image")

# %% [markdown]
# Image by image, the program waits once for each image and once for each index. Shard by shard, it waits only 16 times. For
# ImageNet in shards of 1,000 images, it would wait 1.28 million times image by image, and 1,282 times shard by shard. So
# read single images by range, and read epochs by shard.

# %% [markdown] id="flight" tags=["core"]
# ## 4 · Keep requests in flight
#
# A reader that streams shards knows which shards come next. So it can request them before it needs them.
#
# ![One request at a time: each waits for the network, then brings its bytes. Four in flight: the waiting overlaps, and bytes arrive nearly all the time.](pictures/requests_in_flight.svg)
#
# Requests that are in flight at the same time also wait at the same time, so we count their waiting as one wait.
#
# The latency is 50 ms, and an epoch has 16 shards. How often does a reader wait in an epoch with 1 request in flight, and
# how often with 8?

# %%
guess = None  # your guess, two numbers of waits: for example (16, 8)

# %%
print("your guess:", guess)
for in_flight in (1, 2, 4, 8, 16):
    waits = -(-len(shards) // in_flight)  # rounded up
    print(f"{in_flight:2} in flight: the reader waits {waits:2} times, {0.05 * waits:.2f} s in all")

# %% [markdown]
# With 1 request in flight, the reader waits 16 times, and with 8 it waits only 2 times. The number of waits is the number
# of requests divided by the number in flight, rounded up. (If each answer starts the next request at once, it is even fewer.)
#
# A thread pool is enough to keep several requests in flight:

# %% tags=["slide"]
from concurrent.futures import ThreadPoolExecutor


def read_shard(name):
    return client.get_object(Bucket="course", Key=f"train/{name}")["Body"].read()


def all_shards(in_flight):
    """Read all shards with several requests in flight, and return how many arrived."""
    with ThreadPoolExecutor(in_flight) as pool:
        return sum(map(bool, pool.map(read_shard, shards)))


line.set(latency_s=0.05)
ways = {f"{n} in flight": partial(all_shards, n) for n in (1, 4)}
print(measure.compare(ways, rounds=2, unit="shards"))

# %% [markdown]
# Each request waits 50 ms. So one request at a time delivers at most 20 shards per second, and four in flight deliver at
# most 80. The measured numbers are lower, because receiving the bytes takes time, too.
#
# But `pool.map` goes on requesting shards, even if the program has not used the earlier shards yet. If training is slower
# than the network, a whole epoch piles up in memory.
#
# The reader of the toolbox requests only the next `in_flight` shards. We open it twice, with 1 and with 8 shards in flight,
# and make a loader from each reader:

# %%
from smallfiles.loading import LoaderConfig, make_loader

config = LoaderConfig(batch=32, mode="main", order="stream", buffer=64)
readers = {n: objectstore.open(url, in_flight=n) for n in (1, 8)}
loaders = {f"{n} shard{'s' * (n > 1)}": make_loader(one, config) for n, one in readers.items()}


def epoch(loader):
    return sum(len(batch["index"]) for batch in loader)


# %% [markdown]
# <details>
# <summary>How much memory does the reader need?</summary>
#
# One request fetches at most about 16 MiB, so a large shard needs several requests. With `order="stream"`, the loader reads
# at 20 places of the data set in turn, to mix classes. For each place, it keeps up to 16 MiB in memory. In addition, 4 more
# requests are in flight by default. With large shards, this is 24 × 16 MiB, or about 400 MB per worker. Here it is far
# less, because a shard has only 1 MB.
#
# </details>
#
# The *folded* cell stores each image as an object of its own, too. Then it reads in four ways, with 1 or 8 images in
# flight, and with 1 or 8 shards in flight. It does this with 1, 5, 20 and 50 ms of added latency.

# %% tags=["slide"] jupyter={"source_hidden": true}
from statistics import median

from smallfiles import formats

line.set()
with ThreadPoolExecutor(8) as pool:
    for number, sample in enumerate(formats.open(packed.path)):
        pool.submit(client.put_object, Bucket="course", Key=f"files/{number}.jpg", Body=bytes(sample.data))


def read_image(number):
    return client.get_object(Bucket="course", Key=f"files/{number}.jpg")["Body"].read()


def images_in_flight(in_flight, count):
    with ThreadPoolExecutor(in_flight) as pool:
        return sum(map(bool, pool.map(read_image, range(count))))


ways = {"1 image": partial(images_in_flight, 1, 8), "8 images": partial(images_in_flight, 8, 32)}
ways |= {name: partial(epoch, loader) for name, loader in loaders.items()}
lines = {name: {} for name in ways}
for added_ms in (1, 5, 20, 50):
    line.set(latency_s=added_ms / 1000)
    result = measure.compare(ways, rounds=3, unit="images")
    for name in ways:
        lines[name][added_ms] = result.rates_per_s(name)
gain = median(lines["8 shards"][50]) / median(lines["1 shard"][50])
title = f"At 50 ms, 8 shards in flight deliver about {gain:.0f} times as many images as one"
figures.lines(
    lines, title, x="added latency (ms)", y="images per second", log="xy", note="legend: what is in flight"
)

# %% [markdown]
# With 8 shards in flight, the reader waits 2 times per epoch instead of 16 times. It is not 8 times as fast, because
# receiving the bytes and checking their digests still takes time. With equally many requests in flight, single images are
# slower than shards, because each wait fetches only one image.
#
# <details>
# <summary>How do images in flight compare with shards in flight?</summary>
#
# A shard here has eight images. So a program with 8 images in flight waits as often as a program with 1 shard in flight.
# But it sends eight times as many requests, and each request needs CPU time here and in the store.
#
# </details>
#
# > **Predict.** Your network transports 1.25 GB/s (10 Gbit/s). Each request waits 20 ms, and then its bytes arrive at
# > 90 MB/s. How many requests of 16 MiB must be in flight to fill the network?

# %%
guess = None  # your guess, requests in flight: for example 60

# %%
network = 1.25e9  # change me: bytes per second of your network
request_s = latency_s + (16 << 20) / bandwidth  # a request waits, and then its bytes arrive
in_flight = round(network * request_s / (16 << 20), 1)
worksheet.note("09", in_flight=in_flight)
print(f"{in_flight} requests of 16 MiB fill the network (your guess: {guess})")

# %% [markdown]
# You need 15 to 16 requests in flight. One request takes 206 ms, from its start to its last byte. In this time, the network
# can transport 258 MB, which is 15.4 times 16 MiB.
#
# Four workers with the default `in_flight=4` have 16 requests in flight.
# [Amazon](https://docs.aws.amazon.com/whitepapers/latest/s3-optimizing-performance-best-practices/horizontal-scaling-and-request-parallelization-for-high-throughput.html)
# recommends about the same number for such a network.
#
# You can now solve task 2 of [exercise 09](../exercises/09_stream_shards.ipynb).

# %% [markdown] id="once" tags=["core"]
# ## 5 · Read each sample once, on a line that breaks
#
# If a training runs for days, some connections break. We read an epoch with 2 ranks and 2 workers per rank. Meanwhile, the
# line breaks off six answers in the middle.
#
# Do all 128 samples arrive? Does any sample arrive twice?

# %%
from collections import Counter

line.set(cuts=6, cut_after=400_000)
arrived = Counter()
for rank in range(2):
    config = LoaderConfig(
        batch=16, workers=2, mode="processes", order="stream", buffer=64, rank=rank, world_size=2
    )
    for batch in make_loader(readers[8], config):
        arrived.update(batch["index"].tolist())
for times, number in Counter(arrived.values()).items():
    print(f"{number} of {packed.samples} samples arrived {times}x")
print(f"{line.count()['requests']} requests for {len(shards)} shards")

# %% [markdown]
# All samples arrive, and none of them arrives twice. After each broken answer, the reader sent one more request, which
# asked only for the missing bytes. So there are more requests than shards.
#
# Not every program behaves like this. The next cell defines two functions that read one shard. `reads_once` trusts that the
# answer is complete. `resumes` first asks for the size of the object (a HEAD request), and then sends GET requests until it
# has all bytes. It calls a function `missing`, which you will write.


# %%
def reads_once(key):
    answer, data = get(key), b""
    while piece := answer.read(65536):
        data += piece
    return data


def resumes(key):
    head, data = client.head_object(Bucket="course", Key=key), b""
    while len(data) < head["ContentLength"]:
        answer = get(key, missing(data))
        if answer.headers["etag"] != head["ETag"]:
            raise OSError(f"{key} has changed")
        while piece := answer.read(65536):
            data += piece
    return data


# %% [markdown]
# For each function, the line now breaks off up to three answers, each after a third of a shard. `reads_once` sends only one
# request. What does it return: the whole shard, a part of it, or an error?
#
# **Your turn.** Before each request, `data` contains the bytes that `resumes` already has. From which byte on must it
# request the rest? Change the marked line so that `resumes` returns the right shard.


# %%
def missing(data):
    return 0  # change me: the first byte that is missing


shard = (packed.path / shards[0]).read_bytes()
for way in (reads_once, resumes):
    line.set(cuts=3, cut_after=len(shard) // 3)
    data, sent = way(f"train/{shards[0]}"), line.count()["bytes"] / len(shard)
    print(
        f"{way.__name__:10} returns {len(data) / len(shard):4.0%} (right: {data == shard});",
        f"{sent:4.0%} travelled",
    )

# %% [markdown]
# <details>
# <summary>The line</summary>
#
# `return len(data)`
#
# With 0, every request begins at the first byte again, so `resumes` appends bytes that it already has. It returns about
# twice as many bytes as the shard has, and they are wrong.
#
# </details>
#
# `reads_once` returns a third of the shard, without an error. If a connection closes early, `read(n)` of Python's HTTP
# client returns the bytes that have arrived, and then nothing, as if the object ended there.
#
# If the tar was cut inside an image, this image cannot be read, and a loader that skips damaged images skips it. If it was
# cut between two files, nothing looks damaged. The shard just seems to contain fewer images.
#
# With the right line, `resumes` requests only the missing bytes, so about 100 % of the shard travels. It also compares the
# ETag in each answer, so it never joins parts of two versions of an object.
#
# <details>
# <summary>Is there more to check?</summary>
#
# A careful reader also checks `Content-Range`, because some servers ignore the range and send the whole object.
#
# Only `read(n)` hides that an answer is incomplete. Without a number, `read()` raises `IncompleteRead`.
#
# </details>
#
# You can now solve task 1 of [exercise 09](../exercises/09_stream_shards.ipynb).

# %% [markdown] id="keep" tags=["optional"]
# ## 6 · Keep shards on the node
#
# *Optional, 5 minutes.* Each epoch requests the same shards again. So a node can keep some of them in `/dev/shm` or on its
# disk. Which shards should it keep?
#
# Our reader keeps a *fixed part*. It sorts the shards by name, and always keeps the first ones, as many as fit. Many caches
# follow another rule, LRU (*least recently used*). They keep the shards that were read last.
#
# > **Predict.** A node has room for half of the shards, and each epoch has a new order. From the second epoch on, a fixed part
# > saves half of the requests. What percentage of the requests does LRU save?

# %%
guess = None  # your guess, percent of the requests that LRU saves: for example 50

# %% tags=["slide"]
KEEP = 0.5  # change me: the part of the shards that fits
total = sum(path.stat().st_size for path in packed.path.glob("*.tar"))
place = tempfile.mkdtemp(dir=setup.scratch)  # without `where`, the reader would use /dev/shm
reader = objectstore.open(url, in_flight=2, keep_bytes=int(KEEP * total), where=place)
config = LoaderConfig(batch=32, mode="main", order="stream", buffer=64)
loader, requests = make_loader(reader, config), []
for _ in range(2):
    line.set()
    epoch(loader)
    requests.append(line.count()["requests"])
reader.close()
print(f"a fixed part: {requests[0]} requests in the first epoch, {requests[1]} in the second")

# %% [markdown]
# The second epoch needs fewer requests, because the fixed part is already on the node. The *folded* cell simulates LRU with
# the same room, and draws how many requests each rule saves.

# %% tags=["slide"] jupyter={"source_hidden": true}
import numpy as np

rng, room, hits = np.random.default_rng(0), max(1, int(KEEP * len(shards))), 0
kept = list(range(room))
for _ in range(500):
    for number in rng.permutation(len(shards)).tolist():
        hits += number in kept
        kept = [*(other for other in kept if other != number), number][-room:]
saved = {
    "LRU": round(100 * hits / 500 / len(shards)),
    "a fixed part": round(100 * (1 - requests[1] / requests[0])),
}
title = f"With room for {KEEP:.0%} of the shards, LRU saves {saved['LRU']}%, a fixed part {saved['a fixed part']}%"
bars = {"x": "requests saved (%)", "note": "LRU simulated", "counted": True}
show.figure(figures.bars(saved, title, guess=guess, guess_of="LRU", **bars))

# %% [markdown]
# LRU saves only about a sixth of the requests, although it keeps as many shards as the fixed part. At the end of an epoch,
# LRU has the shards that were read last. The next epoch reads in a new order. Before it comes to these shards, LRU has
# removed most of them to make room for other shards.
#
# <details>
# <summary>And on many nodes?</summary>
#
# With many nodes, a fixed part fills slowly, because each node reads only a fraction of the data set in each epoch. Take 64
# nodes, each with room for half of the data set. In each epoch, a node reads a 64th of the shards. After nine epochs, it
# has read 13 % of all shards. (It is a little less than 9/64, because the node has read some shards twice.) Only half of
# these shards belong to its fixed part. So in the tenth epoch, the node saves 7 % of its requests. With many nodes, stage
# the data set, or stream it.
#
# </details>

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 09](../exercises/09_stream_shards.ipynb), you read an object although some requests fail. Then you stream an
# epoch over two ranks, and each sample must arrive exactly once.

# %% [markdown] id="cluster"
# ## On the cluster
#
# On many clusters, only some nodes can reach an object store. So first test whether a node of your partition reaches it:
#
# ```bash
# export AWS_ENDPOINT_URL=https://s3.example.org            # and your keys: in the environment, or in ~/.aws/credentials
# # any answer of the store, even 403, means that the node reaches it (an answer of a proxy does not count)
# srun -p PARTITION -N1 curl -sSI -m 10 "$AWS_ENDPOINT_URL"
# ```
#
# Push the shards once:

# %%
show.command(TransferConfig(workers=32), "push", "train.tars", "s3://course/train")

# %% [markdown]
# Then stream them in a job:
#
# ```bash
# # pushes train.tars if it is not there yet, streams it on two nodes, writes to `seen` which samples arrived, and counts them
# slurm/submit SITE 09_stream -- train.tars s3://course/train seen
# ```
#
# <details>
# <summary>Can the store deliver enough for many nodes?</summary>
#
# Suppose that each of 64 nodes trains 5,000 images per second, and that an image has 110 kB. Together the nodes read 35 GB/s.
# If the store cannot deliver this, copy the shards once to the parallel file system: `smallfiles pull s3://course/train
# train.tars`.
#
# </details>

# %% [markdown] id="key-points"
# ## Key points
#
# - A program that sends one request at a time waits for the latency once per object, so store shards and not images.
# - If you have the index of a shard, you can read one image with one range request.
# - Requests in flight wait at the same time. If a single request delivers 90 MB/s, about 15 requests of 16 MiB fill a network of
#   10 Gbit/s.
# - The manifest object is written last, so it shows that an upload is complete. A list of objects cannot show this.
# - If an answer breaks off, request the rest by range, and check that the ETag has not changed.
# - If one node reads the whole data set in every epoch, a fixed part saves more requests than LRU.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** The latency is 50 ms. You read images of 100 kB one at a time, over a network of 10 Gbit/s. How fast do you read?
# (a) 1.25 GB/s. (b) 125 MB/s. (c) 2 MB/s.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. One at a time, you send at most 20 requests per second, and each of them fetches 100 kB. (a) is the speed of the
# network, which is idle nearly all the time. (b) would need 1,250 requests per second.
#
# </details>
#
# **2.** An epoch delivers a few hundred images fewer than the day before, without an error. What do you look for first?
# (a) A connection that broke off. (b) A damaged JPEG. (c) A full `/dev/shm`.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. If a reader does not notice the broken connection, the rest of a shard is missing. (b) A damaged JPEG raises an
# error, or only one image is missing. (c) A full `/dev/shm` stops or slows a program, but it does not remove images.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [10 · Run it on many nodes](10_run_it_on_many_nodes.ipynb) reads from many ranks at once.
