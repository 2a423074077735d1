"""A small replicated log broker: metad assigns its partitions, and elects their leaders.

By hand, once ``pip install ./clients '.[server]'`` is done, in the folder ``clients/examples``::

    metad serve --data-dir .data/metad &
    for b in b1 b2 b3; do python -m log_broker --metad metad://127.0.0.1:7420 --name $b --folder .data/$b & done
    metadctl resources create acme orders

There is no election in it. :mod:`.broker` is told by ``m.serve`` what it leads and follows, :mod:`.log` is a partition
on disk, :mod:`.client` produces and consumes, :mod:`.protocol` is what they say to each other.
"""
