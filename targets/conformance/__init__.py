"""What any chip must pass, ours and a third party's: `sections` has the list."""
