"""What every test may use: pytest's own tester, for the plugin."""

pytest_plugins = ["pytester"]
