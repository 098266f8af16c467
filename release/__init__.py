"""Programs that check packages before they are released."""
