"""What `iswitch demo` and `iswitch train` show and keep of a training."""
