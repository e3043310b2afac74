"""Even load: member lists and coordinators of topic groups, and clients, over the brokers."""
