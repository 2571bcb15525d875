"""What a run is: typed keys, TOML files, presets; every mistake refused with its key and value."""
