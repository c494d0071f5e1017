"""Examples, one folder each: `sac train tfagents_system/examples/<name>/vars.sh` trains it."""
