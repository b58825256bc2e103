"""What nodes cost, and who bears how much of it: exact sums of money, without input or output."""
