"""What needs a device other than the CPU: rehearsed on a pretend one (`pretend/`), and the same tests on a GPU."""
