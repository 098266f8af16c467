"""What goes with other packages, each module with one of them."""
