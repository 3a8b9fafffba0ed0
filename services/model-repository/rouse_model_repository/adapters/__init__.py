"""Everything that this service reads and writes: the object store, the spool folder, a process's own file."""
