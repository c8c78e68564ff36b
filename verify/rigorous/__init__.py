"""A second, slow engine in ball arithmetic (python-flint): enclosures that share no numerics with the first one."""
