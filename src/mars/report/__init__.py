"""From run directories to tables, statistics, plots and one page; never imports torch."""
