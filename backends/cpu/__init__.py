"""The CPU backend: loop IR to machine code in process, one native call a run."""
