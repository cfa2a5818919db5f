"""One module at a time, without processes of ours."""
