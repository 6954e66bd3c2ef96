"""The command line: one thin file a verb. Arguments become records, a verb is called, a record becomes text."""
