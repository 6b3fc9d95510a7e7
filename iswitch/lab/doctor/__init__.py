"""What `iswitch doctor` looks at."""
