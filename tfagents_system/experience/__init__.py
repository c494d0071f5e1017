"""Experience from elsewhere: data sets become rings that a run begins with, and rings become data sets."""
