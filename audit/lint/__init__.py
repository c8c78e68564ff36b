"""Wrong practice in training scripts, notebooks and recipes, found without running them: a file of `rules` each."""
