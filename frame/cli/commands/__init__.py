"""One module a subcommand; each is imported when it is called or its help is asked for."""
