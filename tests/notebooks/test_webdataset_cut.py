"""What notebook 05 says about a shard that was cut inside an image, where no cell of it shows it."""

import tarfile

import pytest
import webdataset as wds


def names_in(path):
    with tarfile.open(path) as archive:
        return archive.getnames()


def samples_in(path):
    return list(wds.WebDataset(str(path), shardshuffle=False))


@pytest.mark.parametrize("read", [names_in, samples_in])
def test_a_cut_inside_an_image_raises_unexpected_end_of_data(read, tmp_path):
    whole, cut = tmp_path / "whole.tar", tmp_path / "cut.tar"
    with wds.TarWriter(str(whole)) as writer:
        for number in range(4):
            writer.write({"__key__": f"{number}", "jpg": bytes(5_000), "cls": number})
    with tarfile.open(whole) as archive:
        image = archive.getmember("2.jpg")
    cut.write_bytes(whole.read_bytes()[: image.offset_data + 2_000])
    with pytest.raises(tarfile.ReadError, match="unexpected end of data"):
        read(cut)
