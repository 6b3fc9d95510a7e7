"""Reports that people look at: pages of HTML and the charts in them."""
