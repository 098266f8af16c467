"""Players: a recovery log is read, and its files are recovered as it tells.

`playback` decides what to read next and what happens to files; the others read and write. Imports
`aio`, `client`, `protocol` and the pure modules of `recoverylog`, nothing of `recording`.

1. The player prepares the directory, and finds the ends of logs by appends without content. Hints
   have to be within the logs.
2. Feeds read hinted bytes ahead. A worker thread decodes operations; the history decides which of
   them extend it; and writes that are adjacent in a file are joined.
3. At the end of the log, a log is refused whose beginning is missing, or that nothing continues
   after a hole. Then `tailing` is set, and reading goes on.
4. To take the log over, the player appends the handoff with the author's register, and plays to the
   end of that append. It does so at the end of an append only: after a torn operation, the handoff
   would be taken for the rest of its content. If the history's latest operation is the author's,
   the log is taken over; otherwise another process was faster, and the player appends again.
5. Files are linked to their paths, and their lengths and links are checked. After an error, the
   directory is removed.
"""
