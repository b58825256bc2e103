"""Who gets which place of a Machine, and when: reservation pods, guests, the calendar of bookings."""
