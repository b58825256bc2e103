"""Assignment of the places of a Machine: reservation pods, guests, the calendar of bookings."""
