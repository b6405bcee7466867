"""A tree that other programs see contains the tree alone, and no record of ours."""

import subprocess
import zlib

import pytest
from PIL import Image

import pysquashfs
from pysquashfs.mounting import MountError, mount
from smallfiles import formats
from smallfiles.cli import main

CLASSES = ("ant", "bee", "cat")
OPTIONS = {
    "raw": [],
    "zstd": ["-O", "compression=zstd"],
    "gzip, fragments": ["-O", "compression=gzip", "-O", "fragments=true"],
    "raw, fragments": ["-O", "fragments=true"],
}

OLD_RAW = (
    "78daed575d4c5c45149ebbbbfcb82c7669092e42ccf4fab79875d9052b0dc108351224b5ada4a624d8c2eceeecee95fbc79d"
    "cbcf8636428cd5d036629f68ca43639b486a62f0e7015f2cda1a416a62882f4693526c9ac6fa608c6d1a5ff0ccbd1758ae29"
    "3e99f8c049e69e99f9ce9973e6fccc4296f5b152b44a1eeb2ba032f4b047403e985f106c241db0f91187af38f45489bdfec2"
    "e19d2e3c49ccb8124f69993aa50ee6f54afdc1acc4b0a4900cc58384619d247b690a277258640a91e5b424532646f18b03d4"
    "c86146145da6183408e6082626964c86b5411534cd6cd46f4bb028310c6d1027289352149bdc86259fd5e414c3bd34c72258"
    "26092a331cd60c9c24ba29692aabc1444de1c12c35b812cd01a0509c3634a5d1efc74092a26b8689f59c7dbee5b005982401"
    "c73f07cba8a427a39a4ed56e6e312c6ef048ac891a94a4bae166e11a4b513724d50c5bea11fb94284b66a942a20a35498a98"
    "a42b911f8ac335fe4da8a5a363ffa1b81def662f42412bfa7ef4202a4405a818663ca1beb57d9e1e9fb37f5440568e798af9"
    "7e317c39560cf3030eb607f8b098962884516c1c1615c27ac546316a0e9962446449cda0b04c69fd700ff158444c6b86424c"
    "d8627dfd8465d30ca4343bd65c3d216bc9deee44ce848b35c6ebe3b186ba8898d414dda08c811028aa9a4a41296d908c4255"
    "13e4d244663422ca7480ca62a3da2fcb6088d70dd410b7b41e2bee110f253795940963dc4c970885071014a178985beb57c1"
    "c1fa889825ac9bc77ccd824254294d99d99d9232c0e06c5053a122f81521318c5a97d6658963a6412415d6263132946f58f5"
    "c58300a5eb5c26168d4763e23164c57bdd51848a602d436c318cdf603e036304461b8c72c4f3580e792804b980b5b2f32778"
    "39af46766e3815f07379164096cb17aef631d4039fb8e5b91f3c87b50cdc36116ab2e58466f83cf36f3a56de10d2f374b279"
    "3a21b75fb609742e4f7e621379e778f47d9efc5c9e3c76c95bf176eab61822556c43969e1d3fe48a1f2a70db859641f03ac0"
    "da67edf13e9a11ec1c20ab2f2a9c4e0a582721afcfd29f5d7b33fdb00eacf55440b07bd08bd6691bba3f055dbccae13197dc"
    "ea3ae4f03617dee6c27b5c788f0b1f72e1432e7cdc858fbbf029173ee5c211b26bdceb92fbafd79c1e80b1dd8925b47e6d9c"
    "bf56d0fdb5757cc277eaf964838ee03ac3771fbe1ac7b4c3e50dbf9cffe42987bfee707d8395a5e76d7ecfe1bee615bbdead"
    "7a084015165a9517b46b0fbcd80ddfc7d0fabb7dc009c0ac7381d90de76fbdf75beffdd67bbfd97b9f850dfb6f2896d66592"
    "a4c26a27f94b36f2d368683299e8fc6a0e15e0d6b2e04a912778edddb2939567c67f8809f1871af69cf2f8ce4f91c265efc9"
    "e25d47267baececdfd5ef1d1f182f9a60cbe59f069597adad35771ba6b0287be7ee459bcef858ecb9e2fc377a71ffdf1fc37"
    "4b23645b51f083e074d1ada3c77d91bbf8c3eb9e658fe7267af3d4ceb7478673e33fdf5e182f1da8fda4a9b6e35e674ca64b"
    "de4554f5f4aec509cba711d41afeeecaec7cf0c6afb7966f5f3cd4f1cafb9ef24ca28784e75edabbef0eaa3b131a0a8ded60"
    "2546c7893bdb4f8cfdb140feea1c9d29ba78adadb6e1e3dd5517def01ebc54f6cee5c0abdf0a57bacfb5975e6f7f3cb4b3bd"
    "b4a5baaaf589e9cfe2af358ebe57195102cbb1969713c272f5f42f9f87fe1c633b98b158371aed2537d04f67273b8db7462b"
    "afee9ddf5f84162e3d59ee1bc9ff6f608bb6688bfe8ff4374e1581bc"
)
OLD_ZSTD = (
    "78dacb282e2ce66180012630c9c620c820c0c4c8c0026437304264b85921343394fe0f05879921fc581608fd9705553e39b1"
    "c430d730253fdd28d708c836ce35d6d8aaff37218121948d41894f43b661f959c6867902829b8e882b7e4c7dfb45d940fc74"
    "e286fb49b38fb139701c092ce0b8d777cf6fe66aef13524d178552aa2466ea2f9037760f94687d5222e9723146f6c1e9cfdb"
    "564847afbab08d93c94137edc34ae5b8bed8a09e49bf6fa4245e564e3bfde1d9dce59cbbef1cec2e5a7af44a0dc7f7bea947"
    "6f9c1552dbba5a38b5527ad7dd7de2b52b5fbd6ebddbd8e0bb717ac6893db70e9d36dcc55cf435eea364cc42f1cb0e7c0c8f"
    "9e3dd860a362e8c4115e905b7f944f7b66c23ce65be607242eb06a47fb99ae59742c8dbd981feca7576c738519cae626da19"
    "64cfe173100bb368b17efb28610177b389c7558e9fcb95dd1687bece7f3ddfcde9501a5364ae88c2e46567c2ddd5b51ed617"
    "67309f7ecda59364f0e8e27f5d567f067f061f8600ebd75f9a94b644594dff9cb2cc60898ca542e7caa56f4eae167d756686"
    "e8d62b974fbf6c5bdaeb7acfe8ee0f6536de7fdecbbcffbde857f3f8afaed9b5e3c90477bd0782f3fff0f1ddff5e5b9f1ab8"
    "f0a20fcbac23df2eb14f332bcfdf33edf1b9ab32db758e3d8d883ebf55be75a184e3dca5130d2db49ef4cd8ebcb539d92f5a"
    "3f78c58d1cceac4cf5ed79dfece6ec11f152d91132e3d4a5672b0fdeacd093b49c7be7997bd644e90a17e10e773dcba793ff"
    "4ff92ff25ff3cff10fee13fe2bee0d5975ea6872cf8939bd6b2aad45b3b6af35dffe23f3dddceec2db9a57d2720f9b6db6bc"
    "bdeb6999d1f6976f358e4458594fd823e27461aa6bab9bf147fb45dcfcee1fe20f2ef5b70bb44b5dc2cf6d754730514567d6"
    "11add377b20fd4332c375ac1ddd5b44b846341a255a863558dd207cda28297526f7efe5fa050cff66812b3a4d99c4d1fec85"
    "637fe8deff9e586e2354b122d13539485953c363e92599034c9252b372851a5215a7695b69e62cddf2ff78daa67f27672d38"
    "56d8b8ca53c5f99481658dbafddc770a072acd432648cbe4d489b9d9aa3efebe768f8acedf53f76699084b5c8c72336bbdfe"
    "edf7b6aa5d6e2615fc2f14f6b33c3c24e725a2111eba3c5f3675e5fdde5d06539a17b5f23c7d22f27f49f91cd93291c684d0"
    "8bf7038cd5a3fd5df81c36ce3eba67e2fcc9dc6f769a6f3f57ff7c7baec0fc97619716eda8e4f823e1b6fcf7ed6ae9db7b45"
    "b5bafd84ce9ebaefba66e14c810d9e27eb63c51e651e54375d3af573fbd17d4b7f967f0f3c1dd235e1ead1c3fb946c6633af"
    "316116f659c03483019cfc163094b23008b509c92fd05ccbd8ef28baea551083cccfcdf79fedbd7661eb77868efadbff6fdf"
    "528b5e66be2564859b9b6251d393e6d2c6c79c1f05365c3ccea8e8feaa53edb2dd14e16362f6fb735ebf7b3739ac924996a1"
    "5e9861d36c29be05bc1dfa2656c6260e6bf80fb34ec8b89061c0fe6837dbb2d53a0d6baf2518341d0c123b10d677e1d714de"
    "69358e1f13b4dd0dd7679e497266db320fec3285bb6b59181eb149a94ed0ee65fcbf7fd7eb3b7fefaf7b24cdbcb25a7ebfcb"
    "94f6a9da05533c166c8ebafb65a752f42911c157857deb8dfd651973de5c519b70ed8a6eb5c1bf2ee3a88a0e21eef3cf2efe"
    "6910dfd2bc708d159b67dd71a7d0a99be6461d7de967719cf7fda7195b3c14548e3515cb300b332c98b0ce896187a3004f0c"
    "bb174729f39bc6330e827ea9bdfc724e3c3bb873366abdb6749593a860886069402eb246c1281805a360148c8251300a46c1"
    "2818f60000595d3f31"
)


@pytest.fixture
def photos(tmp_path):
    """Three classes of three pictures."""
    for number in range(9):
        folder = tmp_path / "my photos" / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number, 16), (number * 20, 90, 10)).save(folder / f"{number}.png")
    return tmp_path / "my photos"


def tree_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def packed(source, out, *words):
    assert main(["pack", str(source), str(out), *words]) == 0
    return out


def facts(path):
    with formats.open(path) as reader:
        return [(s.key, *map(bytes, s.blobs), reader.target(n)) for n, s in enumerate(reader)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_squashfs_file_contains_the_packed_tree_and_nothing_else(tmp_path, photos, options):
    out = packed(photos, tmp_path / "x y.sqfs", *options)
    image = pysquashfs.SquashFS(out)
    assert set(image.paths) == {name for name in tree_of(photos) if name.endswith(".png")}
    assert main(["verify", str(out), "--against", str(photos)]) == 0
    assert [*map(bytes, image.read_many(["bee/1.png"]))] == [(photos / "bee/1.png").read_bytes()]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("tool", ["unsquashfs", "rdsquashfs", "7z"])
def test_other_tools_unpack_the_packed_tree_and_nothing_else(tmp_path, photos, need_tool, options, tool):
    out, tree = packed(photos, tmp_path / "x.sqfs", *options), tmp_path / "tree"
    words = {
        "unsquashfs": ["-quiet", "-no-progress", "-d", tree, out],
        "rdsquashfs": ["-q", "-u", "/", "-p", tree, out],
        "7z": ["x", "-bd", f"-o{tree}", out],
    }[tool]
    if tool == "rdsquashfs":
        tree.mkdir()
    package = {"unsquashfs": "squashfs-tools", "rdsquashfs": "squashfs-tools-ng", "7z": "p7zip-full"}[tool]
    done = subprocess.run([need_tool(tool, package), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree_of(tree) == tree_of(photos)
    assert (tree / "cat/8.png").read_bytes() == (photos / "cat/8.png").read_bytes()


@pytest.mark.parametrize("way", ["kernel", "squashfuse"])
def test_programs_that_read_class_folders_see_a_mounted_file_as_its_source(tmp_path, photos, way):
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    out = packed(photos, tmp_path / "x.sqfs")
    try:
        with mount(out, way=way) as folder:
            found = datasets.ImageFolder(str(folder))
            assert found.classes == [*CLASSES] and len(found) == 9
            assert tree_of(folder) == tree_of(photos)
    except MountError as error:
        pytest.skip(str(error))


def test_a_folder_of_plain_files_has_no_class_more_than_its_source(tmp_path, photos):
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    found = datasets.ImageFolder(str(packed(photos, tmp_path / "x.files")))
    assert found.classes == [*CLASSES] and len(found) == 9


def test_a_folder_named_as_our_old_record_is_an_ordinary_folder(tmp_path, photos):
    (tmp_path / "list.csv").write_text("path,label\nant/0.png,1\n.smallfiles/x.png,2\n")
    (photos / ".smallfiles").mkdir()
    (photos / "ant/0.png").rename(photos / ".smallfiles/x.png")
    Image.new("RGB", (8, 8)).save(photos / "ant/0.png")
    out = packed(tmp_path / "list.csv", tmp_path / "x.sqfs", "--root", str(photos))
    assert [key for key, *_ in facts(out)] == ["ant/0.png", ".smallfiles/x.png"]


def test_the_table_is_found_without_this_package_as_the_documentation_says(tmp_path, photos):
    import pyarrow as pa

    data = packed(photos, tmp_path / "x.sqfs").read_bytes()
    end = int.from_bytes(data[64:72], "little")
    start, stop = (int.from_bytes(data[at : at + 8], "little") for at in (end - 24, end - 16))
    table = pa.ipc.open_file(data[start:stop]).read_all()
    assert table["label"].to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert b"smallfiles" in table.schema.metadata


@pytest.mark.parametrize("data", [OLD_RAW, OLD_ZSTD], ids=["raw", "zstd"])
def test_a_file_whose_record_is_in_the_tree_still_opens(tmp_path, data):
    out = tmp_path / "old.sqfs"
    out.write_bytes(zlib.decompress(bytes.fromhex(data)))
    assert ".smallfiles/samples.arrow" in pysquashfs.SquashFS(out).paths
    assert facts(out) == [
        ("cat/1.txt", b"cat1", b"m1", 0),
        ("dog/2.txt", b"dog2", b"m2", 1),
        ("cat/3.txt", b"cat3", b"m3", 0),
    ]
    with formats.open(out) as reader:
        assert reader.classes == ("cat", "dog")
        assert reader.table(["score"])["score"].to_pylist() == [0.5, 1.5, 2.5]
    again = packed(out, tmp_path / "again.sqfs")
    assert facts(again) == facts(out)
    assert set(pysquashfs.SquashFS(again).paths) == {
        *("cat/1.txt", "cat/1.mask.txt", "dog/2.txt", "dog/2.mask.txt", "cat/3.txt", "cat/3.mask.txt")
    }
