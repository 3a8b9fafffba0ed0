"""What is read off the files of an artefact. No I/O of its own: bytes, texts and open files come in."""
