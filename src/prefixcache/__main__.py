"""`python -m prefixcache` is the command `prefixcache`."""

from prefixcache.cli import main

if __name__ == "__main__":
    main()
