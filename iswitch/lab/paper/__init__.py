"""`iswitch paper`: what papers have published, beside what the model and virtual time say."""
