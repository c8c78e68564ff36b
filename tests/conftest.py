"""What every test may use: pytest's own tester, for the plugin; and one thread for each process."""

import os

# before numpy or torch is loaded: tests run side by side, and threads that wait for each other slow all of them
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["pytester"]
