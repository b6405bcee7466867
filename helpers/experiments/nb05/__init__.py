"""The experiments of notebook 05: what shards do to mixing, speed, size and the split over workers.

    lookup      what an index beside a shard is worth
    mixing      how random a batch is, for a shuffle at packing and a buffer at reading
    place       a new folder for each run of a cell
    rates       images per second against images in a shard, with and without slow opens
    shrinking   what compression saves, what it costs, and when that pays
    dealing     which worker of which rank read which sample

The trap: each of them is easy to get right for one process on one disk, and wrong on a cluster.
"""
