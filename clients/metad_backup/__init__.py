"""Backups of a cluster: taken while it serves, looked into, and restored into a new one.

``metadctl backup`` and ``metadctl restore`` are made of it (:mod:`.commands`). A *repository* is a directory, or any
place that fsspec reaches, with many backups whose files are shared (:mod:`.repository`). :mod:`.taking` copies the
files of a checkpoint from nodes, :mod:`.following` archives what they write behind it. :mod:`.copies` opens a backup
as of any moment, for :mod:`.showing` and for :mod:`.restoring`.
"""
