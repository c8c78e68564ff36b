"""The commands of `dpaudit`, a file each: arguments in, one call, the exit status out."""
